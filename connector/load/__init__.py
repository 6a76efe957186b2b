"""Build the tables of one dlt load package from imports that were read, and load it (`dlt_bridge.load_package`)."""
