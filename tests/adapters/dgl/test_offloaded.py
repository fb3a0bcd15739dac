"""Graphs larger than the memory of the device: what DGL's models compute does not change."""

from __future__ import annotations

from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import GRAPHS, MODELS, train  # isort: split

import torch
from torch import Tensor

import peergraph_dgl
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.adapters.dgl.full_graph_operations import (
    LAYERS,
    ON_LOOPS,
    OPERATIONS,
    compare,
    is_missing,
)
from tests.named_case import named_case

STEPS = 2
CHUNKS = (1, 3, 7)


pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _on_rank() -> None:
    ranks = Group.current().world_size
    for number, (name, (make, graph)) in enumerate(MODELS.items()):
        if (number % 3 == 0) != (ranks == 2):
            continue  # Every third model runs on two ranks, the others on one.
        chunks = CHUNKS[(number + ranks) % 3]
        results = [
            train(make, peergraph_dgl.full_graph(GRAPHS[graph](), **options), STEPS, fast=True)
            for options in ({}, {"offload": True, "num_chunks": chunks})
        ]
        with named_case(name, chunks, "chunks"):
            torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
    plain, loops = (
        [
            peergraph_dgl.full_graph(GRAPHS[kind](), **options)
            for options in ({}, {"offload": True, "num_chunks": 3})
        ]
        for kind in ("plain", "loops")
    )
    for number, name in enumerate([*LAYERS, *OPERATIONS]):
        if (number % 3 == 0) == (ranks == 2) and not is_missing(name):
            with named_case(name):
                graphs = loops if name in ON_LOOPS else plain
                expected, got = (_run(name, graph) for graph in graphs)
                for ours, theirs in zip(got, expected, strict=True):
                    assert (ours is None) == (theirs is None)
                    if ours is not None:
                        torch.testing.assert_close(
                            ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True
                        )


def _run(name: str, graph: Any) -> list[Tensor | None]:
    if name in OPERATIONS:
        return compare(OPERATIONS[name], graph, [])
    make, call = LAYERS[name]
    torch.manual_seed(0)
    layer = peergraph_dgl.accelerate(make().double().eval())
    return compare(lambda *inputs: call(layer, *inputs), graph, list(layer.parameters()))


@pytest.mark.parametrize("ranks", [1, 2])
def test_models_layers_and_operations(ranks: int) -> None:
    run_ranks(_on_rank, ranks, timeout_s=300)
