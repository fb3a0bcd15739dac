"""A synthetic graph of the size of ogbn-products, with labels that its structure tells."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

NUM_NODES, NUM_EDGES = 2_449_029, 61_859_140  # of which each is also used backwards
NUM_FEATURES, NUM_CLASSES = 100, 47
_SPLIT = {"train": 0.08, "val": 0.016, "test": 0.1}  # the rest is in no mask
_SAME_CLASS = 0.7
_SIGNAL, _HUBS = 0.2, 2.5  # scale of class centres in noise of 1; larger means larger hubs


def products_graph(scale: float = 1.0, seed: int = 0) -> Data:
    """Returns planted communities with noisy features: 2.45 M nodes, 124 M edges at `scale` 1.

    A node's neighbours are of its own class with probability 0.7, with hubs in each class. Features
    are the centre of the class in noise.
    """
    num_nodes = max(int(NUM_NODES * scale), 2 * NUM_CLASSES)
    num_edges = int(NUM_EDGES / NUM_NODES * num_nodes)
    generator = torch.Generator().manual_seed(seed)
    # Node v has the class v % NUM_CLASSES, before the nodes are shuffled.
    order = torch.randperm(num_nodes, generator=generator)
    destination = torch.randint(num_nodes, (num_edges,), generator=generator)
    label = destination % NUM_CLASSES
    is_other = torch.rand(num_edges, generator=generator) >= _SAME_CLASS
    label[is_other] = torch.randint(NUM_CLASSES, (int(is_other.sum()),), generator=generator)
    size = (num_nodes - label + NUM_CLASSES - 1) // NUM_CLASSES
    place = (torch.rand(num_edges, generator=generator).pow_(_HUBS) * size).long()
    source = place.clamp_(max=size - 1).mul_(NUM_CLASSES).add_(label)
    edge_index = torch.stack([order[source], order[destination]])
    y = torch.empty(num_nodes, dtype=torch.int64)
    y[order] = torch.arange(num_nodes) % NUM_CLASSES
    centres = torch.randn((NUM_CLASSES, NUM_FEATURES), generator=generator) * _SIGNAL
    x = torch.randn((num_nodes, NUM_FEATURES), generator=generator).add_(centres[y])
    data = Data(x=x, y=y, edge_index=torch.cat([edge_index, edge_index.flip(0)], 1))
    shuffled, begin = torch.randperm(num_nodes, generator=generator), 0
    for name, share in _SPLIT.items():
        end = begin + max(int(share * num_nodes), 1)
        data[f"{name}_mask"] = torch.zeros(num_nodes, dtype=torch.bool)
        data[f"{name}_mask"][shuffled[begin:end]] = True
        begin = end
    data.name, data.num_classes = f"products (synthetic, scale {scale:g})", NUM_CLASSES
    return data
