"""Batches made ahead by a thread."""
