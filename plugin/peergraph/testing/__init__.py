"""Helpers for tests of multi-rank code."""

from peergraph.testing.ranks import run_ranks
from peergraph.testing.starting import preload

__all__ = ["preload", "run_ranks"]
