"""Optimizers for :class:`peergraph.Embedding`, beside any optimizer of torch for the rest."""

from peergraph.store.embedding.optimizers import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["SparseAdagrad", "SparseAdam", "SparseSGD"]
