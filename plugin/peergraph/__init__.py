"""Peergraph: the memory of all GPUs of a machine, and its host memory, as one graph store."""
