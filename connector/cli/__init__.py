"""The command `importer-sync`: one module for each subcommand, with EXAMPLES, configure() and run().

Nothing here is imported by the rest of the package. The module of a command is imported only when it runs, so that
`--help` is instant.
"""
