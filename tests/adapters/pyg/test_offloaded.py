"""Graphs larger than the memory of the device: what PyG's models compute does not change."""

from __future__ import annotations

import pytest

from .full_graph import conv_cases, model_cases, offload_cases
from .full_graph.ranks import check_cases

LAYERS = sorted(conv_cases.CASES)
MODELS = sorted(model_cases.CASES)


def split(names: list[str]) -> tuple[list[str], list[str]]:
    """Cases for one rank and for two, which take three times as long: every third."""
    return [name for i, name in enumerate(names) if i % 3], names[::3]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_and_inference(ranks: int) -> None:
    # Every third model runs on two ranks, the others on one.
    thirds = set(list(offload_cases.MODELS)[::3])
    left_out = thirds if ranks == 1 else set(offload_cases.MODELS) - thirds
    names = [name for name in offload_cases.CASES if name not in left_out]
    check_cases(offload_cases.__name__, names, ranks)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "chunks"), [(1, 3), (2, 2)])
def test_layers(ranks: int, chunks: int) -> None:
    """PyG's layers and Peergraph's alternate; on resident rows each layer is tried with both."""
    names = split(LAYERS)[ranks - 1]
    check_cases(conv_cases.__name__, names, ranks, both=False, offload=True, num_chunks=chunks)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (2, 3)])
def test_models(ranks: int, chunks: int) -> None:
    names = split(MODELS)[ranks - 1]
    check_cases(model_cases.__name__, names, ranks, both=False, offload=True, num_chunks=chunks)
