"""Tensors over a store: they hold no values, and read rows when they are asked for."""
