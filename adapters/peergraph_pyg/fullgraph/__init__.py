"""PyG's models on a graph whose rows are partitioned over all ranks."""
