"""Maintain a warehouse: compare it with the service, rewrite it, diagnose and repair it."""
