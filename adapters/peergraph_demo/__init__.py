"""`peergraph demo`: GraphSAGE on data sets that need no download. Uses the PyG adapter."""
