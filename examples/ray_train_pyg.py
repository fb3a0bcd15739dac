"""GraphSAGE under Ray Train: Ray starts the ranks, on any machines of its cluster.

    pip install "ray[train]"
    python examples/ray_train_pyg.py --workers 2              # one GPU each
    python examples/ray_train_pyg.py --workers 2 --device cpu

Ray has made the process group when the training starts, so the script is that of torchrun. Where a
worker is lost, Ray starts all of them again, and the training comes back from its checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import peergraph_pyg


def make_graph(num_nodes: int = 2000, num_classes: int = 5) -> Data:
    """Neighbours mostly have the same class; features say little about it."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(num_nodes) % num_classes
    source = torch.randint(num_nodes, (20 * num_nodes,), generator=random)
    shift = torch.randint(num_nodes // num_classes, source.shape, generator=random) * num_classes
    x = F.one_hot(y, num_classes) + 1.5 * torch.randn(num_nodes, num_classes, generator=random)
    return Data(x=x, y=y, edge_index=torch.stack([source, (source + shift) % num_nodes]))


def train(config: dict[str, Any]) -> None:
    """The work of one rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = ray.train.torch.get_device()
    data = peergraph_pyg.share(make_graph() if rank == 0 else None, device=device)
    torch.manual_seed(0)
    model = DistributedDataParallel(SAGEConv(data.num_features, 5).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    seeds = torch.arange(rank, data.num_nodes, ranks)
    loader = peergraph_pyg.stateful(
        NeighborLoader(data, [10], input_nodes=seeds, batch_size=100, shuffle=True)
    )
    first = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    for epoch in range(first, config["epochs"]):
        loader.set_epoch(epoch)
        right = total = 0
        with model.join():
            for batch in loader:
                batch = batch.to(device)
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                y = batch.y[: batch.batch_size]
                optimizer.zero_grad()
                F.cross_entropy(out, y).backward()
                optimizer.step()
                right, total = right + int((out.argmax(-1) == y).sum()), total + len(y)
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch + 1}, Path(folder, "state"))
            saved = Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"epoch": epoch, "accuracy": right / total}, checkpoint=saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"epochs": args.epochs},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.device == "cuda"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=2)),
    )
    metrics = trainer.fit().metrics
    print(f"epoch {metrics['epoch'] + 1}: training accuracy {metrics['accuracy']:.3f}")


if __name__ == "__main__":
    main()
