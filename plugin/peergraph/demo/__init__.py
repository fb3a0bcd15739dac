"""Data sets and training of `peergraph demo`."""
