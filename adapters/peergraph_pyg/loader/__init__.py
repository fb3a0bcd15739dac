"""PyG's loaders on shared data: the sampler, and what is patched."""
