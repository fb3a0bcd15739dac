"""DGL's samplers and data loaders on graphs over a store."""
