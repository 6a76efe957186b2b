"""Convert rows of JSON text to typed Arrow columns, without network, warehouse, environment or log."""
