"""Graphs over a store: `share`, `from_store`, and the columns of their frames."""
