"""RGCN on a graph of several node and edge types by DGL's NeighborSampler, shared by all ranks.

    python examples/dgl_rgcn_hetero.py                 # on a GPU, where there is one
    python examples/dgl_rgcn_hetero.py --device cpu

The script is DGL's usual one; the lines that use Peergraph are marked with (1), (2) and (3). With
DGL from PyPI, which knows no GPUs, it trains on one.
"""

from __future__ import annotations

import argparse

import peergraph_dgl  # (1) first, so that DGL imports with today's torch

# isort: split

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from torch import Tensor

NUM_CLASSES = 4
NUM_FEATURES = 16


def make_graph(papers: int = 1200, authors: int = 600) -> dgl.DGLGraph:
    """Papers and authors have fields, and most of their links stay inside one."""
    torch.manual_seed(0)
    field = {
        "paper": torch.arange(papers) % NUM_CLASSES,
        "author": torch.arange(authors) % NUM_CLASSES,
    }

    def links(source: str, destination: str, degree: int) -> tuple[Tensor, Tensor]:
        dst = torch.arange(len(field[destination])).repeat_interleave(degree)
        count = len(field[source])
        block = torch.randint(0, count // NUM_CLASSES, dst.shape) * NUM_CLASSES
        near = torch.rand(dst.shape) < 0.8
        anywhere = torch.randint(0, count, dst.shape)
        return torch.where(near, block + field[destination][dst], anywhere), dst

    written, paper = links("author", "paper", 3)
    g = dgl.heterograph(
        {
            ("author", "writes", "paper"): (written, paper),
            ("paper", "written-by", "author"): (paper, written),
            ("paper", "cites", "paper"): links("paper", "paper", 5),
        },
        num_nodes_dict={"paper": papers, "author": authors},
    )
    directions = 0.6 * torch.randn(NUM_CLASSES, NUM_FEATURES)
    for ntype, fields in field.items():
        g.nodes[ntype].data["feat"] = directions[fields] + torch.randn(len(fields), NUM_FEATURES)
    g.nodes["paper"].data["label"] = field["paper"]
    g.nodes["paper"].data["train"] = torch.rand(papers) < 0.3
    return g


class RGCN(torch.nn.Module):
    """Two layers, with weights of their own for each relation and for the node itself."""

    def __init__(self, g: dgl.DGLGraph, num_hidden: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            dglnn.HeteroGraphConv(
                {etype: dglnn.SAGEConv(size, out, "mean") for etype in g.etypes}, aggregate="sum"
            )
            for size, out in ((NUM_FEATURES, num_hidden), (num_hidden, NUM_CLASSES))
        )

    def forward(self, blocks: list[dgl.DGLGraph], x: dict[str, Tensor]) -> Tensor:
        hidden = {ntype: out.relu() for ntype, out in self.layers[0](blocks[0], x).items()}
        return self.layers[1](blocks[1], hidden)["paper"]


def loader(g: dgl.DGLGraph, papers: Tensor, device: torch.device, shuffle: bool) -> DataLoader:
    """Papers, their neighbours by each relation, and the features of those."""
    sampler = NeighborSampler(
        [5, 5],
        prefetch_node_feats={"paper": ["feat"], "author": ["feat"]},
        prefetch_labels={"paper": ["label"]},
    )
    items = {"paper": papers}
    return DataLoader(g, items, sampler, batch_size=128, shuffle=shuffle, device=device)


@torch.no_grad()
def accuracy(model: RGCN, batches: DataLoader) -> float:
    """Over all papers of the loader."""
    right = total = 0
    for _, _, blocks in batches:
        guess = model(blocks, blocks[0].srcdata["feat"]).argmax(-1)
        right += int((guess == blocks[-1].dstnodes["paper"].data["label"]).sum())
        total += guess.numel()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    device = torch.device(args.device)

    g = peergraph_dgl.share(make_graph(), device=args.device)  # (2)
    train = g.nodes["paper"].data["train"][:]
    model = RGCN(g, 32).to(device)
    model = peergraph_dgl.accelerate(model)  # (3) layers without DGL's frames: optional
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for _, _, blocks in loader(g, train.nonzero().view(-1), device, shuffle=True):
            out = model(blocks, blocks[0].srcdata["feat"])
            loss = F.cross_entropy(out, blocks[-1].dstnodes["paper"].data["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = accuracy(model, loader(g, (~train).nonzero().view(-1), device, shuffle=False))
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {score:.3f}")


if __name__ == "__main__":
    main()
