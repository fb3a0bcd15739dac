"""PyG's loaders of subgraphs on shared data."""
