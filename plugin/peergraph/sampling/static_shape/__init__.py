"""K-hop neighbour samples of a static shape, for CUDA graphs."""
