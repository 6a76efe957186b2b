"""Warehouses that earlier versions wrote, taken over by the code at hand."""
