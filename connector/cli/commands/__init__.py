"""The commands: one module each, with EXAMPLES, configure() and run()."""
