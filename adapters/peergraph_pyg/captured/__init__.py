"""Training on a loader's batches in steps of fixed shapes, as CUDA graphs."""
