"""Build the tables of one dlt load package from imports that were read."""
