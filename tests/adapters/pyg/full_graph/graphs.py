"""Small graphs for tests of full-graph training, with attributes of nodes and edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

WIDTH, EDGE_WIDTH, CLASSES, RELATIONS = 6, 3, 4, 3


def small_graph(num_nodes: int = 23, num_edges: int = 110, seed: int = 0) -> Data:
    """A multigraph with self loops, some doubled, isolated nodes and nodes of large degree.

    Args:
        num_nodes, num_edges: its size.
        seed: of its random edges and attributes.
    """
    random = torch.Generator().manual_seed(seed)
    ends = (torch.rand(2, num_edges, generator=random).square() * max(1, num_nodes - 3)).long()
    loops = torch.arange(0, min(num_nodes, num_edges), 3)[: max(1, num_edges // 12)]
    if num_edges >= loops.numel():
        ends[:, : loops.numel()] = loops

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, dtype=torch.float64)

    train = torch.rand(num_nodes, generator=random) < 0.5
    train[0] = True
    return Data(
        x=normal(num_nodes, WIDTH),
        edge_index=ends,
        edge_weight=torch.rand(num_edges, generator=random, dtype=torch.float64) + 0.1,
        edge_attr=normal(num_edges, EDGE_WIDTH),
        edge_type=torch.randint(RELATIONS, (num_edges,), generator=random),
        y=torch.randint(CLASSES, (num_nodes,), generator=random),
        # Multiplies results, so that rows and columns count differently in gradients.
        scale=normal(num_nodes, 64),
        pos=normal(num_nodes, 3),
        train_mask=train,
        val_mask=~train,
        train_idx=train.nonzero().flatten(),
        name="small",
    )


def small_hetero(seed: int = 0) -> HeteroData:
    """Authors write papers, papers cite papers and appear at venues, which have few edges."""
    random = torch.Generator().manual_seed(seed)

    def edges(sources: int, destinations: int, count: int) -> Tensor:
        source = torch.randint(sources, (count,), generator=random)
        return torch.stack([source, torch.randint(destinations, (count,), generator=random)])

    data = HeteroData()
    for name, count, width in (("paper", 21, 4), ("author", 13, 3), ("venue", 5, 2)):
        data[name].x = torch.randn(count, width, generator=random, dtype=torch.float64)
        data[name].scale = torch.randn(count, 64, generator=random, dtype=torch.float64)
    data["paper"].y = torch.randint(CLASSES, (21,), generator=random)
    data["paper"].train_mask = torch.rand(21, generator=random) < 0.5
    data["author", "writes", "paper"].edge_index = edges(13, 21, 50)
    weight = torch.rand(50, generator=random, dtype=torch.float64)
    data["author", "writes", "paper"].edge_weight = weight
    data["paper", "written_by", "author"].edge_index = edges(21, 13, 40)
    data["paper", "cites", "paper"].edge_index = edges(21, 21, 70)
    data["paper", "appears_at", "venue"].edge_index = edges(21, 5, 4)
    data["venue", "prints", "paper"].edge_index = edges(5, 21, 9)
    data.title = "library"
    return data
