"""One run from start to finish: what to read, reading it, loading it, and how it went."""
