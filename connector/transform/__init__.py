"""Rows as JSON text, and from them typed Arrow columns. Pure: no network, no warehouse, no environment, no log."""
