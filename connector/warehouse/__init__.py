"""Read and maintain the destination of one pipeline, with plain SQL through dlt's client.

connection         → Warehouse, Connection: what every query needs
tables             the schemas of our tables
lock               one run per dataset
ownership          which tables of the dataset are ours
state              what earlier runs left: ledger, fields, and whether the rows are those of the ledger
ledger_table       queries about one load, and marks that make the next run read an import again
upgrades           convert a warehouse of an earlier format
due_imports        marks of imports that the next run reads again although they look unchanged
repair             losses of the warehouse, marked so that the next run reads the imports again
lookup             indexes, for rows found by a set of keys
history            versions of rows; history_tables: their tables
waiting_versions   versions whose rows are to be read again; erased_versions: those of what the service erased
ruled_versions     privacy rules that apply later; rebuilt_versions: rebuilds; noted_changes: what both keep
runs_table         the rows of `sync_runs`, including those of crashed runs
standings, status  the state of every import, and what `status` shows of it
typed_tables       rebuild a typed table beside the old one
memory_limit       DuckDB's memory and threads
blocked            which session has a table locked that a statement waited for
failures           explain a destination's exception in a sentence
"""

from connector.warehouse.connection import Connection, Warehouse

__all__ = ["Connection", "Warehouse"]
