"""Small graphs, and how tests get them onto Peergraph's kernels on any device."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import dgl
import torch
from torch import Tensor

from peergraph_dgl.backend.device_index import DeviceIndex


def served(graph: Any, device: torch.device) -> Any:
    """The graph as DGL's CPU wheel would have it on a GPU; on the CPU the same structure."""
    if device.type != "cpu":
        return graph.to(device)
    moved = copy.copy(graph)
    moved._graph = DeviceIndex.copy_of(graph._graph, device)
    return moved


def plain_graph(idtype: torch.dtype = torch.int64) -> Any:
    """A multigraph in which nodes without edges come first, in the middle and last."""
    generator = torch.Generator().manual_seed(3)
    src = torch.randint(0, 23, (90,), generator=generator)
    dst = torch.randint(1, 22, (90,), generator=generator)
    dst[dst == 11] = 12
    return dgl.graph((src, dst), num_nodes=24, idtype=idtype)


def block(idtype: torch.dtype = torch.int64) -> Any:
    """A message flow graph of 30 sources and 10 destinations."""
    generator = torch.Generator().manual_seed(4)
    src = torch.randint(0, 30, (70,), generator=generator)
    dst = torch.randint(0, 9, (70,), generator=generator)
    bipartite = dgl.create_block((src, dst), num_src_nodes=30, num_dst_nodes=10)
    return bipartite if idtype == torch.int64 else bipartite.int()


def typed_graph(played_by: int = 14) -> Any:
    """Three node types and four relations, the last of which has `played_by` edges."""
    generator = torch.Generator().manual_seed(5)

    def edges(count: int, sources: int, destinations: int) -> tuple[Tensor, Tensor]:
        return (
            torch.randint(0, sources, (count,), generator=generator),
            torch.randint(0, destinations, (count,), generator=generator),
        )

    return dgl.heterograph(
        {
            ("user", "follows", "user"): edges(30, 12, 12),
            ("user", "plays", "game"): edges(25, 12, 7),
            ("maker", "makes", "game"): edges(9, 4, 7),
            ("game", "played-by", "user"): edges(played_by, 7, 12),
        },
        num_nodes_dict={"user": 12, "game": 7, "maker": 4},
    )


def assert_close(got: Tensor | None, expected: Tensor | None) -> None:
    """Equal up to the order of sums."""
    assert (got is None) == (expected is None)
    if got is not None and expected is not None:
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def leaf(values: Tensor, device: torch.device) -> Tensor:
    """A copy that collects gradients."""
    return values.detach().to(device, copy=True).requires_grad_()


def grads(out: Tensor, leaves: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of a sum that weighs all values of `out` differently."""
    weights = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.device, out.dtype)
    (out * weights).sum().backward()
    return [None if tensor is None else tensor.grad for tensor in leaves]
