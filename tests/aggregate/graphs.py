"""Small graphs and features for the tests of aggregation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.aggregate import Csc

TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    torch.float16: {"rtol": 1e-2, "atol": 2e-2},
    torch.bfloat16: {"rtol": 5e-2, "atol": 1e-1},
}
DTYPES = list(TOLERANCE)


@dataclass
class Graph:
    """A graph as a list of edges and as the structure under test."""

    edge_index: Tensor
    num_sources: int
    num_destinations: int

    def csc(self) -> Csc:
        return Csc.from_edge_index(self.edge_index, self.num_destinations, self.num_sources)

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    def rows(self, target: str) -> int:
        return {"u": self.num_sources, "v": self.num_destinations, "e": self.num_edges}[target]


def random_graph(
    device: torch.device,
    num_sources: int = 40,
    num_destinations: int = 30,
    num_edges: int = 300,
    dtype: torch.dtype = torch.int64,
    grouped: bool = False,
    seed: int = 0,
    nonisolated: float = 0.8,
) -> Graph:
    """Uniform edges, with duplicates, to the first `nonisolated` share of the destinations."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(max(1, num_sources), (num_edges,), generator=generator)
    last = max(1, int(num_destinations * nonisolated))
    destination = torch.randint(last, (num_edges,), generator=generator)
    if grouped:
        destination = destination.sort().values
    edge_index = torch.stack([source, destination]).to(device, dtype)
    return Graph(edge_index, num_sources, num_destinations)


def hub_graph(device: torch.device, degree: int) -> Graph:
    """One destination with `degree` edges, one with a row just above what a GPU cuts, small ones;
    the first source is a hub too.
    """
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(50, (degree + 513 + 20,), generator=generator)
    source[::3] = 0
    rows = torch.cat([torch.full((degree,), 2), torch.full((513,), 4), torch.arange(20) % 5])
    return Graph(torch.stack([source, rows]).to(device), 50, 6)


def short_lists(device: torch.device, dtype: torch.dtype = torch.int64) -> Graph:
    """Sources with few edges, as in mini-batches; many have none, and one has 700."""
    generator = torch.Generator().manual_seed(3)
    source = torch.randint(3000, (2500,), generator=generator)
    source = torch.cat([source, torch.full((700,), 1501)])
    destination = torch.randint(90, source.shape, generator=generator)
    return Graph(torch.stack([source, destination]).to(device, dtype), 3000, 100)


def features(
    rows: int,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    seed: int = 5,
    grad: bool = True,
) -> Tensor:
    """Values in +-[0.5, 1.5], so that quotients stay tame."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(rows, *shape, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(2, values.shape, generator=generator) * 2 - 1
    return (values * sign).to(device, dtype).requires_grad_(grad)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), **TOLERANCE[actual.dtype])


def assert_same_with_gradients(
    out: Tensor, expected: Tensor, inputs: list[Tensor], twins: list[Tensor]
) -> None:
    """Compares two results and their gradients; `twins` are the inputs of `expected`."""
    assert out.shape == expected.shape
    assert_same(out, expected)
    weight = features(out.shape[0], tuple(out.shape[1:]), out.device, seed=9, grad=False)
    gradients = torch.autograd.grad(out, inputs, weight.to(out.dtype))
    expected_result = torch.autograd.grad(expected, twins, weight.to(expected.dtype))
    for gradient, want in zip(gradients, expected_result, strict=True):
        assert_same(gradient, want)


def weighted_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of a sum of columns, of which none weighs the same."""
    scale = torch.linspace(0.5, 1.5, out.shape[1], device=out.device, dtype=out.dtype)
    return list(torch.autograd.grad((out * scale).sum(), inputs))
