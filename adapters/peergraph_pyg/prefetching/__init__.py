"""A thread that makes batches ahead of the training loop."""
