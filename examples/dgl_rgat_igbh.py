"""R-GAT on IGBH, with the model and the fanouts of MLPerf's benchmark, in DGL and DDP.

    torchrun --nproc-per-node 4 examples/dgl_rgat_igbh.py igbh/small/processed --classes 19
    torchrun --nproc-per-node 2 examples/dgl_rgat_igbh.py igbh/tiny/processed --device cpu

The folder is that of rgat_igbh.py, which does the same in PyG. The lines that use Peergraph are
marked with (1) to (4); the rest is plain DGL. With DGL from PyPI, which knows no GPUs, it trains on
them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import peergraph_dgl  # (1) first, so that DGL imports with today's torch

# isort: split

import dgl
import dgl.nn as dglnn
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

LABELS = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
COLUMNS = 1024
FANOUTS = [5, 10, 15]  # for each edge type, the hop farthest from the seeds first


def read_array(path: Path, *shape: int) -> Tensor:
    """A map of a file; those of the largest sizes are float32 values without a header."""
    with path.open("rb") as file:
        has_header = file.read(6) == b"\x93NUMPY"
    if has_header:
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    return torch.from_numpy(np.memmap(path, np.float32, mode="c").reshape(-1, *shape))


def read_graph(folder: Path, classes: int) -> dgl.DGLGraph:
    """The nodes and edges, with the reverse of each relation, as MLPerf prepares them."""
    features = {
        path.parent.name: read_array(path, COLUMNS) for path in folder.glob("*/node_feat.npy")
    }
    edges = {}
    for path in sorted(folder.glob("*/edge_index.npy")):
        source, name, destination = path.parent.name.split("__")
        begin, end = read_array(path).unbind(1)
        if source == destination:
            loops, apart = torch.arange(len(features[source])), begin != end
            begin, end = begin[apart], end[apart]
            edges[source, name, destination] = (
                torch.cat([begin, end, loops]),
                torch.cat([end, begin, loops]),
            )
        else:
            edges[source, name, destination] = begin, end
            edges[destination, f"rev_{name}", source] = end, begin
    graph = dgl.heterograph(edges, num_nodes_dict={t: len(x) for t, x in features.items()})
    for node_type, rows in features.items():
        graph.nodes[node_type].data["x"] = rows
    graph.nodes["paper"].data["y"] = read_array(folder / "paper" / LABELS[classes]).long()
    return graph


class RGAT(torch.nn.Module):
    """A GAT layer of 4 heads for each edge type, summed over types; 3 times."""

    def __init__(self, graph: dgl.DGLGraph, hidden: int, classes: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            dglnn.HeteroGraphConv(
                {
                    name: dglnn.GATConv((size, size), hidden // 4, 4, allow_zero_in_degree=True)
                    for name in graph.etypes
                },
                aggregate="sum",
            )
            for size in [COLUMNS] + [hidden] * (len(FANOUTS) - 1)
        )
        self.classify = torch.nn.Linear(hidden, classes)

    def forward(self, blocks: list[dgl.DGLGraph]) -> Tensor:
        x = blocks[0].srcdata["x"]
        for layer, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            x = {t: rows.flatten(1) for t, rows in conv(block, x).items()}
            if layer < len(self.convs) - 1:
                x = {t: F.dropout(F.leaky_relu(h), 0.2, self.training) for t, h in x.items()}
        return self.classify(x["paper"])


def loader(
    graph: dgl.DGLGraph, papers: Tensor, batch_size: int, device: torch.device, shuffle: bool
) -> DataLoader:
    """This rank's share of the papers, their neighbours and the features of those."""
    sampler = NeighborSampler(
        FANOUTS,
        prefetch_node_feats={node_type: ["x"] for node_type in graph.ntypes},
        prefetch_labels={"paper": ["y"]},
    )
    share = {"paper": papers[dist.get_rank() :: dist.get_world_size()]}
    return DataLoader(graph, share, sampler, batch_size=batch_size, shuffle=shuffle, device=device)


@torch.no_grad()
def accuracy(model: RGAT, batches: DataLoader, device: torch.device) -> float:
    """Over the papers of all ranks."""
    counts = torch.zeros(2, device=device)
    for _, _, blocks in batches:
        with torch.autocast(device.type, torch.bfloat16):
            guess = model(blocks).argmax(-1)
        y = blocks[-1].dstnodes["paper"].data["y"]
        counts += torch.stack([(guess == y).sum(), counts.new_tensor(len(guess))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(args: argparse.Namespace, device: torch.device) -> None:
    """The work of one rank."""
    rank = dist.get_rank()
    graph = read_graph(args.folder, args.classes) if rank == 0 else None  # (2) one rank reads it
    graph = peergraph_dgl.share(
        graph, device=device, storage={"x": args.storage}
    )  # (3) all have it

    torch.manual_seed(42)
    labelled = torch.randperm(args.labelled or graph.num_nodes("paper"))
    split = int(0.6 * len(labelled))
    training, validation = labelled[:split], labelled[split:][: max(1, len(labelled) // 200)]
    rgat = RGAT(graph, args.hidden, args.classes).to(device)
    rgat = peergraph_dgl.accelerate(rgat)  # (4) faster layers: optional
    # Some layers end in types from which nothing reaches the papers, the same ones in every step.
    model = DistributedDataParallel(rgat, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        with model.join():  # ranks may have different numbers of batches
            for _, _, blocks in loader(graph, training, args.batch_size, device, shuffle=True):
                optimizer.zero_grad()
                with torch.autocast(device.type, torch.bfloat16):
                    y = blocks[-1].dstnodes["paper"].data["y"]
                    loss = F.cross_entropy(model(blocks), y)
                loss.backward()
                optimizer.step()
        model.eval()
        batches = loader(graph, validation, args.batch_size, device, shuffle=False)
        score = accuracy(rgat, batches, device)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, validation accuracy {score:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder `processed` of a size of IGBH")
    parser.add_argument("--classes", type=int, choices=list(LABELS), default=2983)
    parser.add_argument("--labelled", type=int, help="157675969 for the size full; default: all")
    parser.add_argument("--storage", default="float16", help="of the rows: float8_e4m3, int8, ...")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=1024, help="papers on each rank")
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    # As in sage_pyg.py: the group ends after the model, and after a barrier.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
