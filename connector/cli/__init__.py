"""The command `importer-sync`: one module a command, each with NAME, HELP, EXAMPLES, configure() and run().

Nothing here is imported by the rest of the package. Modules import dlt and what stands on it only when a command
runs, so that `--help` is instant.
"""
