"""Ranks that hash strings differently, as new interpreters do, build and sample alike."""

from __future__ import annotations

from peergraph.testing import run_ranks
from tests.multirank.test_sampling import same_everywhere
from tests.multirank.test_store import build_from_one_rank


def _build_and_sample() -> None:
    build_from_one_rank("auto", "cpu")
    same_everywhere("mixed", "cpu")


def test_stores_and_samples() -> None:
    run_ranks(_build_and_sample, 2, start="fresh")
