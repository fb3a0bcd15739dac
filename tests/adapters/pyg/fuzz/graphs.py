"""Random graphs, and loaders over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader, NeighborLoader

Draw = np.random.Generator
WIDTH, CHANNELS, EDGE_WIDTH, RELATIONS = 6, 4, 3, 3


def one_of(draw: Draw, *options: Any) -> Any:
    """Returns one of the options."""
    return options[int(draw.integers(len(options)))]


def ends(draw: Draw, sources: int, destinations: int, count: int) -> Tensor:
    """Returns edges, most of them into few nodes; with self loops and repeated edges."""
    source = draw.integers(0, sources, count)
    return torch.tensor(np.stack([source, (draw.random(count) ** 2 * destinations).astype(int)]))


def numbers(draw: Draw, *shape: int) -> Tensor:
    """Returns numbers in float64, so that a difference is no rounding."""
    return torch.tensor(draw.normal(size=shape))


def add_edges(draw: Draw, storage: Any, sources: int, destinations: int) -> None:
    """Adds edges and their attributes to a storage of PyG."""
    count = int(one_of(draw, 0, 1, 12, 60, 60, 200))
    storage.edge_index = ends(draw, sources, destinations, count)
    storage.edge_attr = numbers(draw, count, EDGE_WIDTH)
    storage.edge_weight = torch.tensor(draw.random(count))
    storage.edge_type = torch.tensor(draw.integers(0, RELATIONS, count))


def graph(draw: Draw) -> Data:
    """Returns a graph of one type."""
    nodes = int(draw.integers(2, 40))
    data = Data(x=numbers(draw, nodes, WIDTH))
    add_edges(draw, data, nodes, nodes)
    return data


def typed_graph(draw: Draw) -> HeteroData:
    """Returns a graph of up to three types of nodes and six of edges."""
    data = HeteroData()
    node_types = ["a", "b", "c"][: int(draw.integers(1, 4))]
    widths = one_of(draw, [WIDTH] * 3, [3, 4, 5])
    for node_type, width in zip(node_types, widths, strict=False):
        data[node_type].x = numbers(draw, int(draw.integers(1, 20)), width)
    for i in range(int(draw.integers(1, 7))):
        source, target = one_of(draw, *node_types), one_of(draw, *node_types)
        storage = data[source, f"r{i}", target]
        add_edges(draw, storage, len(data[source].x), len(data[target].x))
    return data


def loader_over(draw: Draw, shared: Any, *, trims: bool) -> Any:
    """Returns a loader; with `trims`, one whose batches know the numbers of each hop."""
    fanouts = [int(one_of(draw, -1, 1, 2, 3)) for _ in range(2)]
    size = int(one_of(draw, 1, 3, 8))
    nodes: Any = None
    if isinstance(shared, HeteroData):
        node_type = one_of(draw, *shared.node_types)
        ids = draw.integers(0, shared[node_type].x.shape[0], int(draw.integers(1, 6)))
        nodes = node_type, torch.tensor(ids)
        if not trims and draw.random() < 0.2:
            return HGTLoader(shared, [3, 2], input_nodes=nodes, batch_size=size)
    elif draw.random() < 0.5:
        nodes = torch.tensor(draw.integers(0, shared.x.shape[0], 5))
    kinds = ["directional"] if trims else ["directional", "directional", "induced"]
    if not trims and isinstance(shared, Data):
        kinds.append("bidirectional")
    return NeighborLoader(
        shared,
        fanouts,
        input_nodes=nodes,
        batch_size=size,
        shuffle=bool(draw.random() < 0.5),
        replace=bool(draw.random() < 0.2),
        disjoint=bool(draw.random() < 0.2),
        subgraph_type=one_of(draw, *kinds),
    )
