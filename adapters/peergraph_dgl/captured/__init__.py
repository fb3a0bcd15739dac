"""Training steps on the batches of DGL's loaders as CUDA graphs."""
