"""Functions of torch on offloaded tensors: recorded, or computed with the rows of all chunks."""
