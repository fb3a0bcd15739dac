"""Link prediction with DGL's edge sampler and negatives, on a graph that all ranks share.

    python examples/dgl_link_prediction.py                                      # one process
    torchrun --nproc-per-node 2 examples/dgl_link_prediction.py --device cpu
    python examples/dgl_link_prediction.py --no-dgl-graph       # structure in the store only

The script is DGL's usual one; the lines that use Peergraph are marked with (1), (2), (3), (4).
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
from dgl.dataloading import (
    DataLoader,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)
from dgl_node_classification import SAGE, make_graph
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def both_ways() -> dgl.DGLGraph:
    """Edge i of the first half goes one way, edge i of the second half the other."""
    return dgl.add_reverse_edges(make_graph(), copy_ndata=True, exclude_self=False)


def score(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits of the edges of a batch and of their negatives, with their labels."""
    _, positive, negative, blocks = batch
    h = F.normalize(model(blocks, blocks[0].srcdata["feat"]))
    logits, labels = [], []
    for graph, label in ((positive, 1.0), (negative, 0.0)):
        source, destination = graph.edges()
        logits.append(8 * (h[source] * h[destination]).sum(-1) - 4)
        labels.append(torch.full_like(logits[-1], label))
    return torch.cat(logits), torch.cat(labels)


def train(device: torch.device, epochs: int, ranks: int, dgl_graph: bool) -> None:
    """The work of one rank."""
    rank = dist.get_rank() if ranks > 1 else 0
    g = both_ways() if rank == 0 else None  # (2) one rank has the graph
    g = peergraph_dgl.share(g, device=device)  # (3) all ranks have it
    half = g.num_edges() // 2
    if not dgl_graph:
        g = peergraph_dgl.from_store(peergraph_dgl.store_of(g), edges=True)  # (4)

    torch.manual_seed(0)
    sage = SAGE(g.ndata["feat"].shape[1], 32, 16).to(device)
    model = DistributedDataParallel(sage) if ranks > 1 else sage
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([10, 10], prefetch_node_feats=["feat"]),
        exclude="reverse_id",  # the edges to predict, and their reverses, are not looked at
        reverse_eids=torch.cat([torch.arange(half, 2 * half), torch.arange(half)]),
        negative_sampler=negative_sampler.Uniform(1),
    )
    loader = DataLoader(
        g,
        torch.arange(0, half, 4),
        sampler,
        device=device,
        batch_size=1024,
        shuffle=True,
        use_ddp=ranks > 1,
    )
    for epoch in range(epochs):
        right = total = 0
        for batch in loader:
            logits, labels = score(model, batch)
            loss = F.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int(((logits > 0) == (labels > 0)).sum())
            total += labels.numel()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {right / total:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--no-dgl-graph", dest="dgl_graph", action="store_false")
    args = parser.parse_args()
    device = torch.device(args.device)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    train(device, args.epochs, ranks, args.dgl_graph)
    if ranks > 1:
        # After the model is gone: the last owner of a process group must not be DDP's reducer. And
        # after a barrier: torch 2.4 waits for Gloo's threads, which may wait for the interpreter.
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
