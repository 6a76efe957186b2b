"""Carry out one run from start to finish: decide what to read, read it, load it, and record the outcome."""
