"""GraphSAGE by GraphBolt, DGL's data pipelines, on a graph that all ranks share.

    python examples/dgl_graphbolt.py                 # on a GPU, where there is one
    python examples/dgl_graphbolt.py --device cpu

Needs DGL 2.1. The script is GraphBolt's usual one; the lines that use Peergraph are marked with
(1) to (4). It runs with today's torch, for which GraphBolt has no native library.
"""

from __future__ import annotations

import argparse

import peergraph_dgl  # (1) first, so that DGL imports with today's torch

# isort: split

import dgl
import dgl.graphbolt as gb
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph_dgl.graphbolt import FeatureStore, SamplingGraph  # (2)

NUM_CLASSES = 5


def make_graph(num_nodes: int = 2000) -> dgl.DGLGraph:
    """Communities: most edges stay inside one, features say little about which one it is."""
    torch.manual_seed(0)
    label = torch.arange(num_nodes) % NUM_CLASSES
    dst = torch.randint(0, num_nodes, (15 * num_nodes,))
    inside = torch.randint(0, num_nodes // NUM_CLASSES, dst.shape) * NUM_CLASSES + label[dst]
    src = torch.where(torch.rand(dst.shape) < 0.8, inside, torch.randint(0, num_nodes, dst.shape))
    g = dgl.graph((src, dst), num_nodes=num_nodes)
    g.ndata["feat"] = F.one_hot(label, NUM_CLASSES) + 1.5 * torch.randn(num_nodes, NUM_CLASSES)
    g.ndata["label"] = label
    g.ndata["train"] = torch.rand(num_nodes) < 0.3
    return g


class SAGE(torch.nn.Module):
    """Two layers of mean aggregation."""

    def __init__(self, num_features: int, num_hidden: int) -> None:
        super().__init__()
        self.first = dglnn.SAGEConv(num_features, num_hidden, "mean")
        self.second = dglnn.SAGEConv(num_hidden, NUM_CLASSES, "mean")

    def forward(self, blocks: list[dgl.DGLGraph], x: Tensor) -> Tensor:
        return self.second(blocks[1], self.first(blocks[0], x).relu())


def loader(
    graph: gb.SamplingGraph,
    features: gb.FeatureStore,
    items: gb.ItemSet,
    device: torch.device,
    shuffle: bool,
) -> gb.DataLoader:
    """GraphBolt's pipeline: seeds, their neighbours, features of those."""
    pipe = gb.ItemSampler(items, batch_size=128, shuffle=shuffle)
    pipe = pipe.copy_to(device, extra_attrs=["seed_nodes"])
    pipe = pipe.sample_neighbor(graph, [10, 10])
    pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
    return gb.DataLoader(pipe)


@torch.no_grad()
def accuracy(model: SAGE, batches: gb.DataLoader) -> float:
    """Over all items of the loader."""
    right = total = 0
    for batch in batches:
        guess = model(batch.blocks, batch.node_features["feat"]).argmax(-1)
        right += int((guess == batch.labels).sum())
        total += guess.numel()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    device = torch.device(args.device)

    g = peergraph_dgl.share(make_graph(), device=args.device)  # (3)
    store = peergraph_dgl.store_of(g)
    graph, features = SamplingGraph(store), FeatureStore(store)  # (4)

    train = g.ndata["train"][:]
    labels = g.ndata["label"][:]
    splits = [
        gb.ItemSet((nodes, labels[nodes]), names=("seed_nodes", "labels"))
        for nodes in (train.nonzero().view(-1), (~train).nonzero().view(-1))
    ]
    model = SAGE(NUM_CLASSES, 64).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        for batch in loader(graph, features, splits[0], device, shuffle=True):
            out = model(batch.blocks, batch.node_features["feat"])
            loss = F.cross_entropy(out, batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = accuracy(model, loader(graph, features, splits[1], device, shuffle=False))
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {score:.3f}")


if __name__ == "__main__":
    main()
