"""Provide SQL views and checks for analysts, and the report as one HTML page."""
