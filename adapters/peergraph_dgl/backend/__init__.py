"""What answers for DGL's C library: the graph index, edge lists and kernels."""
