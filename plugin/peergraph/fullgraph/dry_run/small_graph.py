"""Sizes, edges and rows of a small graph with the types and the degrees of a large one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.fullgraph.offload.rows.user_rows import read_rows
from peergraph.memory.table.table import Table
from peergraph.store import EdgeType, NodeType

_MOST_EDGES, _LEAST_NODES, _MOST_NODES = 1 << 16, 300, 2000


@dataclass(frozen=True)
class SmallGraph:
    """A random graph like a large one.

    Args:
        num_nodes: by node type; odd, so that no layer has as many columns by chance.
        num_edges: by relation.
    """

    num_nodes: dict[NodeType, int]
    num_edges: dict[EdgeType, int]

    @classmethod
    def like(
        cls, num_nodes: Mapping[NodeType, int], num_edges: Mapping[EdgeType, int]
    ) -> SmallGraph:
        """Returns a graph of as many nodes and edges for each other."""
        nodes, edges = max(1, sum(num_nodes.values())), max(1, sum(num_edges.values()))
        small = min(_MOST_NODES, max(_LEAST_NODES, nodes * _MOST_EDGES // edges))
        scale = min(1.0, small / nodes)
        return cls(
            {t: round(count * scale) | 1 if count else 0 for t, count in num_nodes.items()},
            {t: min(count, round(count * scale) + 1) for t, count in num_edges.items()},
        )

    def edges(self, edge_type: EdgeType) -> Tensor:
        """Returns random edges of a relation, [2, edges] int64 on the CPU."""
        draw = torch.Generator("cpu").manual_seed(len(str(edge_type)))
        count = self.num_edges[edge_type]
        ends = (self.num_nodes[edge_type[0]], self.num_nodes[edge_type[2]])
        return torch.stack(
            [torch.randint(max(1, n), (count,), generator=draw, device="cpu") for n in ends]
        )


def sample_rows(table: Table | Tensor, count: int) -> Tensor:
    """Returns rows of a table at equal distances, [count, ...], again from the first if needed.

    Of a vector of bools as large a share is set, and at least one if any is.

    Args:
        table: [rows, ...], not empty unless `count` is 0.
        count: of the rows.
    """
    rows = table.shape[0]
    if table.dtype == torch.bool and len(table.shape) == 1:
        selected = int(read_rows(table, torch.arange(rows, device="cpu")).sum())
        small = max(min(1, selected), round(count * selected / max(1, rows)))
        draw = torch.Generator("cpu").manual_seed(0)
        mask: Tensor = torch.randperm(count, generator=draw, device="cpu") < small
        return mask
    step = max(1, rows // max(1, count))
    sampled = read_rows(table, torch.arange(count, device="cpu") * step % max(1, rows))
    return sampled.requires_grad_(isinstance(table, Tensor) and table.requires_grad)
