"""Replicas of parameters that one rank changes alone: an error on all ranks, never a mixture."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, RGCNConv, SAGEConv

import peergraph_pyg
from peergraph.fullgraph import FullGraph, PartitionedEdgeIndex, PartitionedTensor
from peergraph.fullgraph.exchange.replicas import Replicas
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES = 60

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "SAGE": lambda: SAGEConv(8, 3),
    "GAT": lambda: GATConv(8, 3),
    "RGCN": lambda: RGCNConv(8, 3, 2, num_bases=2),  # uses weights that are computed in forward
}


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.conv = peergraph_pyg.accelerate(LAYERS[kind]())

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        out: Tensor = self.conv(self.norm(x), *edges)
        return out


def _reset(model: nn.Module) -> None:
    model.get_submodule("conv").reset_parameters()  # type: ignore[operator]


def _load(model: nn.Module) -> None:
    model.load_state_dict({name: 1.1 * value for name, value in model.state_dict().items()})


def _write_data(model: nn.Module) -> None:
    next(iter(model.parameters())).data[0] += 0.5


def _write_last(model: nn.Module) -> None:
    list(model.parameters())[-1].data[0] += 0.5


def _round(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1 + 2e-7)


CHANGES = {"reset": _reset, "load": _load, "data": _write_data, "last": _write_last}


def _graph(kind: str, offload: bool) -> tuple[tuple[Tensor, ...], PartitionedTensor]:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 400), generator=draw)
    graph = FullGraph.build(
        Group.current("cpu"), NODES, edges, offload=offload, num_chunks=2 if offload else None
    )
    [structure] = graph.structures.values()
    x = graph.node_rows(torch.randn(NODES, 8, generator=draw))
    inputs: tuple[Tensor, ...] = (x, PartitionedEdgeIndex(structure))
    if kind == "RGCN":
        types = torch.randint(2, (400,), generator=draw)
        inputs = (*inputs, graph.edge_rows(types))
    y = graph.node_rows(torch.arange(NODES) % 3)
    assert isinstance(y, PartitionedTensor)
    return inputs, y


def _train(
    kind: str, change: Callable[[nn.Module], None] | None, offload: bool, evaluates: bool
) -> tuple[str | None, list[Tensor], int]:
    """The error of this rank's third pass, its weights, and its warnings; rank 1 changes its."""
    inputs, y = _graph(kind, offload)
    torch.manual_seed(0)
    model = Model(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for step in range(4):
                if step == 2 and change is not None and Group.current("cpu").rank == 1:
                    change(model)
                if evaluates and step >= 2:
                    with torch.no_grad():
                        int((model(*inputs).argmax(1) == y).sum())
                    continue
                optimizer.zero_grad()
                F.cross_entropy(model(*inputs), y).backward()
                optimizer.step()
        except ValueError as raised:
            error = str(raised)
    count = sum("rounding" in str(warning.message) for warning in caught)
    return error, [parameter.detach() for parameter in model.parameters()], count


def _cases(kind: str, offload: bool) -> None:
    for name, change in CHANGES.items():
        error, _, _ = _train(kind, change, offload, evaluates=name == "reset")
        assert "parameters differ from those of rank 0: one of shape" in str(error), name
        assert "on rank 1" in str(error)
    error, _, count = _train(kind, None, offload, False)
    assert error is None
    assert count == 0


@pytest.mark.parametrize("kind", LAYERS)
def test_a_rank_that_writes_alone_is_named(kind: str) -> None:
    run_ranks(_cases, 2, kind, False)


def test_offloaded_models_too() -> None:
    run_ranks(_cases, 2, "SAGE", True)


@pytest.mark.parametrize("offload", [False, True])
def test_rounding_is_removed_with_a_warning(offload: bool) -> None:
    results = run_ranks(_train, 2, "SAGE", _round, offload, False)
    assert [(error, count) for error, _, count in results] == [(None, 1)] * 2
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


def _count_comparisons() -> list[int]:
    """Sums over ranks that comparisons made in each step; one is for all parameters."""
    inputs, y = _graph("SAGE", False)
    torch.manual_seed(0)
    model = Model("SAGE")
    counts = []
    for _ in range(3):
        count = 0

        class Counting(Replicas):
            def compare(self) -> None:
                nonlocal count
                count += bool(self._used)
                super().compare()

        y.row_layout.group.shared[Replicas] = Counting(y.row_layout.group)
        F.cross_entropy(model(*inputs), y).backward()
        counts.append(count)
    return counts


def test_one_comparison_a_pass() -> None:
    assert run_ranks(_count_comparisons, 2) == [[1, 1, 1]] * 2
