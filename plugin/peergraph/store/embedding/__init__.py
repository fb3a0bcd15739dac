"""Embeddings: tables that are trained, and their optimizers."""
