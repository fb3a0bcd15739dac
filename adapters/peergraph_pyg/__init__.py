"""PyG adapter of Peergraph."""
