"""Each layer and each operation of DGL computes on partitions what it computes on the graph."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

# First: it skips where there is no DGL.
from tests.adapters.dgl.full_graph_models import GRAPHS  # isort: split

import dgl
import torch
from torch import Tensor

import peergraph_dgl
from peergraph.testing import run_ranks
from tests.adapters.dgl.full_graph_operations import (
    LAYERS,
    ON_LOOPS,
    OPERATIONS,
    compare,
    is_missing,
)

FAST = ("GraphConv", "SAGE", "GAT", "GATv2", "GIN", "R-GCN")
"""The first words of the names of Peergraph's layers."""

Results = dict[str, list[Tensor | None] | str]


pytestmark = pytest.mark.usefixtures("one_thread_a_rank")


def _layer(name: str, graphs: dict[str, Any], fast: bool) -> list[Tensor | None]:
    make, call = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double().eval()
    if fast:
        peergraph_dgl.accelerate(layer)
    graph = graphs["loops" if name in ON_LOOPS else "plain"]
    return compare(lambda *inputs: call(layer, *inputs), graph, list(layer.parameters()))


def _on_ranks() -> Results:
    graphs = {name: peergraph_dgl.full_graph(GRAPHS[name]()) for name in ("plain", "loops")}
    results: Results = {}
    for name in (name for name in LAYERS if not is_missing(name)):
        # Of layers that are not Peergraph's, nothing changes.
        for fast in (False, True) if name.split()[0].rstrip(",") in FAST else (False,):
            kind = f"{name}{', accelerated' * fast}"
            try:
                results[kind] = _layer(name, graphs, fast)
            except NotImplementedError:  # It is raised on all ranks, before any exchange.
                results[kind] = traceback.format_exc()
    for name, operation in OPERATIONS.items():
        try:
            results[name] = compare(operation, graphs["plain"], [])
        except NotImplementedError:
            results[name] = traceback.format_exc()
    return results


@pytest.fixture(scope="module")
def expected() -> Results:
    graphs = {name: GRAPHS[name]() for name in ("plain", "loops")}
    names = [name for name in LAYERS if not is_missing(name)]
    results: Results = {name: _layer(name, graphs, False) for name in names}
    fast = [name for name in names if name.split()[0].rstrip(",") in FAST]
    results.update({f"{name}, accelerated": results[name] for name in fast})
    plain = graphs["plain"]
    results.update({name: compare(run, plain, []) for name, run in OPERATIONS.items()})
    return results


@pytest.mark.parametrize("world_size", [1, 3])
def test_results_and_gradients_are_dgls(world_size: int, expected: Results) -> None:
    wrong: list[str] = []
    for rank, actual in enumerate(run_ranks(_on_ranks, world_size, timeout_s=300)):
        assert actual.keys() == expected.keys()
        for name, tensors in expected.items():
            got = actual[name]
            if isinstance(got, str):
                wrong.append(f"{name}: {got}")
                continue
            for number, (ours, theirs) in enumerate(zip(got, tensors, strict=True)):
                if not _close(ours, theirs):
                    wrong.append(f"{name}, tensor {number}, rank {rank}")
    assert not wrong, "\n".join(wrong)


def _close(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    # DGL's EGNNConv has no gradient at self loops.
    return torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("options", [{}, {"offload": True, "num_chunks": 2}])
@pytest.mark.parametrize("name", ["max", "min"])
def test_nodes_without_messages_send_no_gradient(name: str, options: dict[str, Any]) -> None:
    """DGL gives node 0 the gradients of nodes that got no message, and of extrema of infinities."""
    sign = 1 if name == "max" else -1
    x = torch.tensor([5.0, 7, 9, -sign * torch.inf], dtype=torch.float64)[:, None]
    g = dgl.graph(([1, 2, 3], [0, 0, 3]), num_nodes=4)
    g.ndata["x"] = x
    full = peergraph_dgl.full_graph(g, **options)
    rows = full.ndata["x"].detach().requires_grad_()
    out = getattr(dgl.ops, f"copy_u_{name}")(full, rows)
    out.sum().backward()
    best = 2 if name == "max" else 1
    none = -sign * torch.inf
    assert out.full_tensor().flatten().tolist() == [float(x[best]), none, none, none]
    right = torch.zeros(4, dtype=torch.float64)
    right[best] += 1
    right[3] += 1  # torch's amax of one message, whatever it is
    assert torch.equal(rows.grad.full_tensor().flatten(), right)
