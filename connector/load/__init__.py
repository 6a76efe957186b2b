"""Imports that were read, and from them the tables of one load package of dlt."""
