"""Arguments of full_graph that say where offloaded rows are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import dgl  # isort: split

import torch

import peergraph_dgl
from peergraph.memory import Group

NODES = 300


def partition(x: torch.Tensor, **options: Any) -> Any:
    edges = torch.randint(NODES, (2, 900), generator=torch.Generator().manual_seed(1))
    graph = dgl.graph((edges[0], edges[1]), num_nodes=NODES)
    graph.ndata["x"] = x
    given = {"offload": True, "num_chunks": 64, "memory_budget": 50_000, "order": "random"}
    group = Group(0, 1, torch.device("cpu"), 60.0)
    return peergraph_dgl.full_graph(graph, group=group, **{**given, **options})


def test_widths_host_memory_and_folder(tmp_path: Path) -> None:
    x = torch.randn(NODES, 16)
    graph = partition(x, widths=[16, 16, 16, 4], host_memory=1 << 20, folder=tmp_path)
    content = graph.ndata["x"]._content
    # The features are read from the tensor of the given graph and not copied to the host.
    assert content.store.tier == "user"
    stores = content.space.stores
    assert (stores.folder, stores.use["host"].budget, stores.use["host"].used) == (
        tmp_path,
        1 << 20,
        0,
    )
    assert torch.equal(graph.ndata["x"].full_tensor(), x)
    with pytest.raises(ValueError, match="host_memory must not be negative, got -1"):
        partition(x, host_memory=-1)
    with pytest.raises(ValueError, match="host memory is not enough"):
        partition(x, host_memory=0, widths=[16, 16, 16, 4])
