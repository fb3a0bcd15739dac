"""Full-graph training of DGL models on several ranks is training in one process."""

from __future__ import annotations

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import GRAPHS, MODELS, train  # isort: split

import torch

import peergraph_dgl
from peergraph.testing import run_ranks
from tests.named_case import named_case

# Curves over 50 epochs, and longer, are a benchmark: benchmarks/fullgraph_curves.py.
EPOCHS = 3
FEW = 2
# Trained for all epochs with accelerated layers; DGL's own layers, and other models, for a few.
LONG = ("GCN", "SAGE mean", "GAT", "GIN", "R-GCN", "deep, BatchNorm", "hetero")
KINDS = [
    *((name, True, EPOCHS) for name in LONG),
    *((name, False, FEW) for name in MODELS),
    *((name, True, FEW) for name in ("GCN weighted", "SAGE pool", "GATv2", "hetero, max")),
]


pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _curves() -> list[list[float]]:
    graphs = {name: peergraph_dgl.full_graph(make()) for name, make in GRAPHS.items()}
    return [
        train(MODELS[name][0], graphs[MODELS[name][1]], epochs, fast)
        for name, fast, epochs in KINDS
    ]


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    """Of DGL's layers on DGL's graph, in one process."""
    return [train(MODELS[name][0], GRAPHS[MODELS[name][1]](), epochs) for name, _, epochs in KINDS]


@pytest.mark.parametrize("world_size", [1, 3])
def test_losses_are_those_of_one_process(world_size: int, expected: list[list[float]]) -> None:
    for rank, curves in enumerate(run_ranks(_curves, world_size, timeout_s=400)):
        for kind, got, losses in zip(KINDS, curves, expected, strict=True):
            with named_case(*kind, "rank", rank):
                torch.testing.assert_close(got, losses, rtol=1e-6, atol=1e-6)
