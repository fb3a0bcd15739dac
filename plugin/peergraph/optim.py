"""Optimizers for :class:`peergraph.Embedding`; other parameters take any optimizer of torch."""

from peergraph.store.embedding.optimizers import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["SparseAdagrad", "SparseAdam", "SparseSGD"]
