"""Training steps on a loader's batches as CUDA graphs of a fixed shape."""
