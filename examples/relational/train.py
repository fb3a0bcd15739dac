"""Relational deep learning: a database of ten tables, a prediction for its rows, recommendations.

    python examples/relational/train.py                          # one process
    torchrun --nproc-per-node 4 examples/relational/train.py     # one rank per GPU

The tables have keys, times and texts. Rows become nodes, foreign keys become edges, and columns
become frames of PyTorch Frame, as in RelBench; the model has RelBench's shape. DuckDB finds what is
to be predicted: whether a customer will place an order in the next 30 days, and of which products.
The lines that use Peergraph are marked with (1), (2) and (3). Without them, PyG runs the script in
one process, if pyg-lib is installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from database import make_database, make_graph, make_tasks
from model import Model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg  # (1)

BUYS = ("customers", "buys", "products")


class AttachTarget:
    """Gives each batch the labels of its seeds."""

    def __init__(self, target: Tensor) -> None:
        self.target = target

    def __call__(self, batch: HeteroData) -> HeteroData:
        batch["customers"].y = self.target[batch["customers"].input_id.cpu()]
        return batch


def entity_output(model: nn.Module, batch: HeteroData) -> tuple[Tensor, Tensor]:
    """The logits and the labels of a batch's customers."""
    seeds = batch["customers"]
    logits = model(batch, seeds.seed_time)["logits"][: seeds.batch_size]
    return logits, seeds.y.to(logits.device)


def pair_scores(model: nn.Module, batch: HeteroData) -> tuple[Tensor, Tensor]:
    """The scores of bought products, and of products at random."""
    customers, products = batch["customers"], batch["products"]
    x = model(batch, customers.seed_time)
    source = x["customers"][customers.src_index]
    positive, negative = (
        x["products"][i] for i in (products.dst_pos_index, products.dst_neg_index)
    )
    return (source * positive).sum(-1), (source * negative).sum(-1)


def area_under_curve(score: Tensor, label: Tensor) -> float:
    rank = score.argsort().argsort().double() + 1
    positive = label == 1
    p, n = int(positive.sum()), int((~positive).sum())
    return float((rank[positive].sum() - p * (p + 1) / 2) / max(1, p * n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=float, default=1e6, help="of all tables")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200, help="at most, in an epoch")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--neighbors", type=int, nargs="+", default=[32, 16])
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, rank, world = torch.device(args.device), 0, 1
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
        rank, world = dist.get_rank(), dist.get_world_size()
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    data = None
    if rank == 0:
        tables = make_database(int(args.rows))
        data = make_graph(tables)
        data.tasks = make_tasks(tables)
        print({name: len(table) for name, table in tables.items()})
    data = peergraph_pyg.share(data, device=device, time_attr="time")  # (2)

    fanouts = {  # fewer of the longest lists
        t: [k // 4 if t[0] == "visits" else k for k in args.neighbors] for t in data.edge_types
    }
    common = {"time_attr": "time", "batch_size": args.batch_size, "drop_last": True}

    def entities(split: str) -> NeighborLoader:
        customer, time, label = (x[rank::world] for x in data.tasks[f"active {split}"])
        return NeighborLoader(
            data, fanouts, ("customers", customer), time, transform=AttachTarget(label),
            temporal_strategy="last", shuffle=split == "train", **common,
        )  # fmt: skip

    def links(split: str) -> LinkNeighborLoader:
        customer, product, time = (x[rank::world] for x in data.tasks[f"bought {split}"])
        return LinkNeighborLoader(
            data, fanouts, (BUYS, torch.stack([customer, product])), edge_label_time=time,
            neg_sampling="triplet", shuffle=split == "train", **common,
        )  # fmt: skip

    def batches(loader: NeighborLoader | LinkNeighborLoader) -> Iterator[HeteroData]:
        """The same number on every rank."""
        smallest = torch.tensor(min(len(loader), args.steps), device=device)
        if world > 1:
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        for _, batch in zip(range(int(smallest)), loader, strict=False):
            yield batch.to(device)

    for task in ("entity", "recommendation"):
        torch.manual_seed(0)
        model = Model(data, args.channels, len(args.neighbors)).to(device)
        model = peergraph_pyg.accelerate(model)  # (3)
        if world > 1:
            model = DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        make = entities if task == "entity" else links
        for epoch in range(args.epochs):
            model.train()
            total, count = 0.0, 0
            for batch in batches(make("train")):
                optimizer.zero_grad()
                if task == "entity":
                    logits, label = entity_output(model, batch)
                    loss = F.binary_cross_entropy_with_logits(logits, label.float())
                else:
                    positive, negative = pair_scores(model, batch)
                    loss = -F.logsigmoid(positive - negative).mean()
                loss.backward()
                optimizer.step()
                total, count = total + float(loss.detach()), count + 1
            model.eval()
            results = []
            with torch.no_grad():
                for batch in batches(make("test")):
                    output = entity_output if task == "entity" else pair_scores
                    results.append(output(model, batch))
            first, second = (torch.cat(each) for each in zip(*results, strict=True))
            quality = (
                f"area under curve {area_under_curve(first, second):.3f}"
                if task == "entity"
                else f"bought above random {float((first > second).float().mean()):.3f}"
            )
            if rank == 0:
                print(f"{task} epoch {epoch}: loss {total / max(1, count):.4f}, {quality}")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
