"""Tensors over a store: they contain no values, and read rows when an operation needs them."""
