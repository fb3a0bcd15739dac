"""PyG's loaders on shared data: the sampler and the patches of PyG."""
