"""Helpers for tests of multi-rank code."""

from peergraph.testing.ranks import run_ranks

__all__ = ["run_ranks"]
