"""Sums over local and remote sources in one kernel: results, and that no setting changes a bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import Schedule
from tests.aggregate.graphs import Graph, features, hub_graph, random_graph
from tests.aggregate.interleaved import SplitSources
from tests.named_case import named_case
from tests.pairwise import pairwise

# All partitions of all widths, and the least and the most of the others.
SETTINGS = [(1, 1, 1), (2, 3, 2), (4, 1, 16), (8, 32, 1), (16, 4, 4), (32, 2, 8), (1000, 5, 3)]
# A hub's sum of a thousand numbers of size 1 may be near 0.
TOLERANCE = {
    torch.float32: {"rtol": 1e-4, "atol": 2e-3},
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
}
WIDTHS = (4, 8, 16, 32, 48, 64, 128, 132, 300)


def graphs(device: torch.device) -> dict[str, Graph]:
    return {
        "random": random_graph(device),
        "hub": hub_graph(device, 1100),
        "dense": random_graph(device, 40, 20, 4000),
        "none": random_graph(device, num_edges=0),
        "int32": random_graph(device, dtype=torch.int32),
    }


def settings() -> list[_C.Interleaving]:
    return [_C.Interleaving(partition=p, distance=d, warps_per_block=w) for p, d, w in SETTINGS]


def expected(graph: Graph, x: Tensor, e: Tensor | None, mean: bool) -> Tensor:
    source, destination = graph.edge_index.long()
    messages = x.double()[source] * (1.0 if e is None else e.double())
    out = torch.zeros(graph.num_destinations, x.shape[1], dtype=torch.float64, device=x.device)
    out.index_add_(0, destination, messages)
    if mean:
        degrees = torch.bincount(destination, minlength=graph.num_destinations)
        out /= degrees.clamp(min=1).unsqueeze(1)
    return out


CASES = pairwise(
    ["random", "hub", "dense", "none", "int32"],
    WIDTHS,
    ["no e", "a weight", "as wide as x"],
    [(False, 0.5), (True, 0.9), (False, 0.0), (False, 1.0)],
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_sums(device: torch.device, dtype: torch.dtype) -> None:
    by_name = graphs(device)
    for name, width, operand, (mean, share) in (case.values for case in CASES):
        with named_case(name, width, operand, mean, share):
            graph, e = by_name[name], None
            x = features(graph.num_sources, (width,), device, dtype, grad=False)
            if operand != "no e":
                columns = 1 if operand == "a weight" else width
                e = features(graph.num_edges, (columns,), device, dtype, 6, grad=False)
            split = SplitSources(graph, int(share * graph.num_sources))
            results = [split.sums(x, e, mean, setting) for setting in settings()]
            assert all(torch.equal(other, results[0]) for other in results)
            if not mean:
                assert torch.equal(split.sums(x, e, False, None), results[0])
            want = expected(graph, x, e, mean)
            torch.testing.assert_close(results[0].double(), want, **TOLERANCE[dtype])


def test_rows_that_are_not_cut(device: torch.device) -> None:
    """As in MGG's baseline without neighbour partitioning."""
    graph = hub_graph(device, 1100)
    x = features(graph.num_sources, (16,), device, grad=False)
    split = SplitSources(graph, 20, Schedule(long_row=1 << 30))
    for setting in settings():
        actual = split.sums(x, None, False, setting)
        torch.testing.assert_close(
            actual.double(), expected(graph, x, None, False), **TOLERANCE[x.dtype]
        )


def test_bad_settings() -> None:
    for settings in ({"partition": 0}, {"distance": 33}, {"distance": 0}, {"warps_per_block": 17}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
            _C.Interleaving(**settings)


def test_half_types_are_refused() -> None:
    graph = random_graph(torch.device("cpu"))
    x = features(graph.num_sources, (16,), torch.device("cpu"), torch.float16, grad=False)
    with pytest.raises(ValueError, match="float32 and float64"):
        SplitSources(graph, 20).sums(x, None, False, _C.Interleaving())
