"""The destination of one pipeline, read and kept with plain SQL through dlt's client.

What only looks at a finished warehouse (status, report, views for analysts) has its SQL where it is asked.

connection   → Warehouse, Connection: what every question needs
memory       what earlier runs left: ledger, fields, and whether the rows are those that the ledger speaks of
run_rows     the rows of `sync_runs`, of dead runs too
standings    how every import stands: failed, unreconciled, unfinished, …
promises     what the next run reads again though it looks unchanged
checks       questions about one load, and what makes the next run read an import again
typed        a typed table written anew beside the old one
"""

from connector.warehouse.connection import Connection, Warehouse

__all__ = ["Connection", "Warehouse"]
