"""Turn rows of JSON text into typed Arrow columns. Pure: no network, no warehouse, no environment, no log."""
