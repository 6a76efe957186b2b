"""The commands: one module each, with NAME, HELP, EXAMPLES, configure() and run()."""
