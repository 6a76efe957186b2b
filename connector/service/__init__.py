"""Call the service's HTTP API and return typed pages, without a warehouse and without decisions about imports."""
