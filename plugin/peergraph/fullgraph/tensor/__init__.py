"""Tensors of all ranks' rows, and rules of operations."""
