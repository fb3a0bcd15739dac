"""Full-batch training of DGL's GraphSAGE, exact on any number of GPUs.

    python examples/dgl_full_graph.py                                  # one process
    torchrun --nproc-per-node 2 examples/dgl_full_graph.py             # one rank per GPU
    torchrun --nproc-per-node 2 examples/dgl_full_graph.py --device cpu
    python examples/dgl_full_graph.py --memory-budget 1                # features in host memory

The script is DGL's usual one for one GPU. Every rank runs it, on a part of the nodes and edges, and
gets the loss and the gradients of one process, also with dropout. The lines that use Peergraph are
marked with (1), (2) and (3).
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import peergraph_dgl  # (1) first, so that DGL imports with today's torch

# isort: split

import dgl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.memory import Group


def make_graph(num_nodes: int = 2000, num_classes: int = 5) -> dgl.DGLGraph:
    """Communities: most edges stay inside one, features say little about which one it is."""
    torch.manual_seed(0)
    y = torch.arange(num_classes).repeat_interleave(num_nodes // num_classes)
    size = num_nodes // num_classes
    source = torch.randint(num_nodes, (16 * num_nodes,))
    inside = y[source] * size + torch.randint(size, source.shape)
    anywhere = torch.randint(num_nodes, source.shape)
    destination = torch.where(torch.rand(source.shape) < 0.9, inside, anywhere)
    g = dgl.graph((source, destination), num_nodes=num_nodes)
    g.ndata["feat"] = F.one_hot(y, num_classes) + 1.5 * torch.randn(num_nodes, num_classes)
    g.ndata["label"] = y
    split = torch.rand(num_nodes)
    g.ndata["train_mask"], g.ndata["test_mask"] = split < 0.3, split >= 0.3
    return g


class SAGE(nn.Module):
    """Two layers of mean aggregation with BatchNorm and dropout."""

    def __init__(self, num_features: int, num_hidden: int, num_classes: int) -> None:
        super().__init__()
        self.first = dgl.nn.SAGEConv(num_features, num_hidden, "mean")
        self.norm = nn.BatchNorm1d(num_hidden)
        self.dropout = nn.Dropout(0.5)
        self.second = dgl.nn.SAGEConv(num_hidden, num_classes, "mean")

    def forward(self, g: Any, x: Tensor) -> Tensor:
        h = self.dropout(self.norm(self.first(g, x)).relu())
        out: Tensor = self.second(g, h)
        return out


def train(device: str, epochs: int, memory_budget: float | None) -> None:
    """The script of every rank."""
    torch.manual_seed(0)
    group = Group.current(device=device)
    budget = None if memory_budget is None else int(memory_budget * 2**20)
    g = peergraph_dgl.full_graph(make_graph(), budget, group=group)  # (2) each rank keeps its part
    features, labels = g.ndata["feat"], g.ndata["label"]
    train_mask, test_mask = g.ndata["train_mask"], g.ndata["test_mask"]

    model = SAGE(features.shape[1], 64, 5).to(g.device)
    peergraph_dgl.accelerate(model)  # (3) optional: fused layers
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(epochs):
        model.train()
        out = model(g, features)
        loss = F.cross_entropy(out[train_mask], labels[train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        model.eval()
        with torch.no_grad():  # exact inference, on all GPUs
            guess = model(g, features).argmax(1)
            right = (guess == labels)[test_mask].float().mean()
        if group.rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.6f}, test accuracy {right.item():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--memory-budget",
        type=float,
        help="MiB of each rank's device; rows that do not fit stay in host memory; default: all",
    )
    args = parser.parse_args()
    distributed = "WORLD_SIZE" in os.environ
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if distributed:
        dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
    train(args.device, args.epochs, args.memory_budget)
    if distributed:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
