"""Generated graphs for tests of partitions, and brute force over their edges."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

NUM_NODES = 60


def edge_graphs(num_nodes: int = NUM_NODES) -> dict[str, Tensor]:
    """Edge lists [2, edges] over `num_nodes` nodes, by name."""
    random = torch.Generator().manual_seed(5)
    nodes = torch.arange(num_nodes)
    uniform = torch.randint(num_nodes, (2, 400), generator=random)
    leaves = torch.arange(1, num_nodes)
    hub = torch.zeros(num_nodes - 1, dtype=torch.int64)
    return {
        "no edges": torch.zeros((2, 0), dtype=torch.int64),
        "self loops": torch.stack([nodes, nodes]),
        "uniform": uniform,
        "int32": uniform.int(),
        "duplicate edges": torch.cat([uniform, uniform], 1),
        "isolated nodes": uniform % (num_nodes // 2),
        "hub of destinations": torch.stack([hub, leaves]),
        "hub of sources": torch.stack([leaves, hub]),
        "path": torch.stack([nodes[:-1], nodes[1:]]),
    }


def planted_graph(
    communities: int = 24, size: int = 25, degree: int = 10, inside: float = 0.95
) -> tuple[int, Tensor, Tensor]:
    """A graph with communities in random order.

    Returns:
        The number of nodes; edges [2, edges], both directions; the community of each node.
    """
    random = torch.Generator().manual_seed(1)
    nodes = communities * size
    count = nodes * degree // 2
    target = torch.randint(nodes, (count,), generator=random)
    within = target // size * size + torch.randint(size, (count,), generator=random)
    anywhere = torch.randint(nodes, (count,), generator=random)
    source = torch.where(torch.rand(count, generator=random) < inside, within, anywhere)
    name = torch.randperm(nodes, generator=random)
    community = torch.empty(nodes, dtype=torch.int64)
    community[name] = torch.arange(nodes) // size
    edges = torch.stack([name[source], name[target]])
    return nodes, torch.cat([edges, edges.flip(0)], 1), community


def brute_force_volume(
    edges: Tensor, source_rank: Tensor, destination_rank: Tensor, world_size: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Distinct rows and edges [P][P] into rank p from rank q, by scipy."""
    source, destination = edges.long().numpy()
    adjacency = sp.coo_matrix(
        (np.ones(source.size, dtype=np.int64), (destination, source)),
        shape=(destination_rank.numel(), source_rank.numel()),
    ).tocsr()
    into, of = destination_rank.numpy(), source_rank.numpy()
    rows, counts = [], []
    for p in range(world_size):
        block = [adjacency[into == p][:, of == q] for q in range(world_size)]
        rows.append([int((b.getnnz(axis=0) > 0).sum()) for b in block])
        counts.append([int(b.sum()) for b in block])
    return rows, counts
