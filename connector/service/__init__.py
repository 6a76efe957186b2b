"""The service's HTTP API: bytes in, typed pages out. Knows no warehouse and decides nothing about imports."""
