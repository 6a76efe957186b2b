"""The destination of one pipeline, read and kept with plain SQL through dlt's client.

connection         → Warehouse, Connection: what every question needs
tables             the schemas of our tables
lock               one run a dataset
ownership          which tables of the dataset are ours
state              what earlier runs left: ledger, fields, and whether the rows are those that the ledger speaks of
ledger_table       questions about one load, and what makes the next run read an import again
upgrades           a warehouse of an earlier format, taken over
promises           what the next run reads again though it looks unchanged
mending            what the warehouse lost, noted so that the next run reads it again
lookup             rows found by a set of keys
runs_table         the rows of `sync_runs`, of dead runs too
standings, status  how every import stands, and what `status` shows of it
typed_tables       a typed table written anew beside the old one
memory_limit       DuckDB's memory and threads
blocked            who has a table locked that a statement waited for
failures           what a destination's exception means, in a sentence
"""

from connector.warehouse.connection import Connection, Warehouse

__all__ = ["Connection", "Warehouse"]
