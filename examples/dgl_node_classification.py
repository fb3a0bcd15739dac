"""GraphSAGE for node classification with DGL's DataLoader, on a graph that all ranks share.

    python examples/dgl_node_classification.py                                  # one process
    torchrun --nproc-per-node 2 examples/dgl_node_classification.py             # one rank per GPU
    torchrun --nproc-per-node 2 examples/dgl_node_classification.py --device cpu

The script is DGL's usual one; the lines that use Peergraph are marked with (1), (2) and (3).
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
from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler, NeighborSampler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


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
    """Two layers of mean aggregation."""

    def __init__(self, num_features: int, num_hidden: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                dgl.nn.SAGEConv(num_features, num_hidden, "mean"),
                dgl.nn.SAGEConv(num_hidden, num_classes, "mean"),
            ]
        )

    def forward(self, blocks: list[Any], h: Tensor) -> Tensor:
        first, second = self.layers
        hidden: Tensor = first(blocks[0], h).relu()
        result: Tensor = second(blocks[1], hidden)
        return result


@torch.no_grad()
def accuracy(model: nn.Module, g: dgl.DGLGraph, device: torch.device, ranks: int) -> float:
    """Over the test nodes of all ranks, from all their neighbours."""
    sampler = MultiLayerFullNeighborSampler(
        2, prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    nodes = g.ndata["test_mask"].nonzero().view(-1)
    if ranks > 1:
        nodes = nodes[dist.get_rank() :: ranks]
    counts = torch.zeros(2, device=device)
    for _, _, blocks in DataLoader(g, nodes, sampler, device=device, batch_size=512):
        guess = model(blocks, blocks[0].srcdata["feat"]).argmax(-1)
        right = (guess == blocks[-1].dstdata["label"]).sum()
        counts += torch.stack([right, right.new_tensor(len(guess))])
    if ranks > 1:
        dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(device: torch.device, epochs: int, ranks: int) -> None:
    """The work of one rank."""
    rank = dist.get_rank() if ranks > 1 else 0
    g = make_graph() if rank == 0 else None  # (2) one rank has the graph
    g = peergraph_dgl.share(g, device=device)  # (3) all ranks have it

    torch.manual_seed(0)
    sage = SAGE(g.ndata["feat"].shape[1], 64, 5).to(device)
    model = DistributedDataParallel(sage) if ranks > 1 else sage
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    sampler = NeighborSampler([10, 10], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(
        g,
        g.ndata["train_mask"].nonzero().view(-1),
        sampler,
        device=device,
        batch_size=128,
        shuffle=True,
        use_ddp=ranks > 1,
    )
    for epoch in range(epochs):
        model.train()
        for _, _, blocks in loader:
            out = model(blocks, blocks[0].srcdata["feat"])
            loss = F.cross_entropy(out, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        score = accuracy(sage, g, device, ranks)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {score:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    device = torch.device(args.device)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    train(device, args.epochs, ranks)
    if ranks > 1:
        # After the model is gone: the last owner of a process group must not be DDP's reducer. And
        # after a barrier: torch 2.4 waits for Gloo's threads, which may wait for the interpreter.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
