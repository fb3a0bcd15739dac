"""R-GAT on IGBH, with the model, the fanouts and the split of MLPerf's benchmark, in PyG and DDP.

    torchrun --nproc-per-node 4 examples/rgat_igbh.py igbh/small/processed --classes 19
    torchrun --nproc-per-node 2 examples/rgat_igbh.py igbh/tiny/processed --device cpu --hidden 64

The folder is the one that IGB's downloads make: `paper/node_feat.npy`, `paper/node_label_19.npy`,
`paper__cites__paper/edge_index.npy` and so on; rows of features are read where they lie. The lines
that use Peergraph are marked with (1) to (5); the rest is plain PyG.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GATConv, HeteroConv
from torch_geometric.utils import add_self_loops, remove_self_loops, trim_to_layer

import peergraph_pyg  # (1)

LABELS = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
COLUMNS = 1024
FANOUTS = [15, 10, 5]  # for each edge type


def read_array(path: Path, *shape: int) -> Tensor:
    """A map of a file; those of the largest sizes are float32 values without a header."""
    with path.open("rb") as file:
        has_header = file.read(6) == b"\x93NUMPY"
    if has_header:
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    return torch.from_numpy(np.memmap(path, np.float32, mode="c").reshape(-1, *shape))


def read_graph(folder: Path, classes: int) -> HeteroData:
    """The nodes and edges, with the reverse of each relation, as MLPerf prepares them."""
    data = HeteroData()
    for path in sorted(folder.glob("*/node_feat.npy")):
        data[path.parent.name].x = read_array(path, COLUMNS)
    data["paper"].y = read_array(folder / "paper" / LABELS[classes]).long()
    for path in sorted(folder.glob("*/edge_index.npy")):
        source, name, destination = path.parent.name.split("__")
        edges = read_array(path).t()
        if source == destination:
            edges, _ = remove_self_loops(edges)
            both = torch.cat([edges, edges.flip(0)], 1)
            data[source, name, destination].edge_index, _ = add_self_loops(
                both, num_nodes=data[source].num_nodes
            )
        else:
            data[source, name, destination].edge_index = edges
            data[destination, f"rev_{name}", source].edge_index = edges.flip(0)
    return data


class RGAT(torch.nn.Module):
    """A GAT layer of 4 heads for each edge type, summed over types; 3 times."""

    def __init__(self, data: HeteroData, hidden: int, classes: int) -> None:
        super().__init__()
        columns = data["paper"].x.shape[1]
        self.convs = torch.nn.ModuleList(
            HeteroConv(
                {
                    t: GATConv((size, size), hidden // 4, heads=4, add_self_loops=False)
                    for t in data.edge_types
                },
                aggr="sum",
            )
            for size in [columns] + [hidden] * (len(FANOUTS) - 1)
        )
        self.classify = torch.nn.Linear(hidden, classes)

    def forward(self, batch: HeteroData) -> Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        nodes_by_hop, edges_by_hop = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(layer, nodes_by_hop, edges_by_hop, x, edges)
            x = conv(x, edges)
            if layer < len(self.convs) - 1:
                x = {t: F.dropout(F.leaky_relu(h), 0.2, self.training) for t, h in x.items()}
        return self.classify(x["paper"][: batch["paper"].batch_size])


def loader(data: HeteroData, papers: Tensor, batch_size: int, shuffle: bool) -> NeighborLoader:
    """This rank's share of the papers."""
    share = papers[dist.get_rank() :: dist.get_world_size()]
    return NeighborLoader(
        data, FANOUTS, input_nodes=("paper", share), batch_size=batch_size, shuffle=shuffle
    )


@torch.no_grad()
def accuracy(model: RGAT, batches: NeighborLoader, device: torch.device) -> float:
    """Over the papers of all ranks."""
    counts = torch.zeros(2, device=device)
    for batch in batches:
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            guess = model(batch).argmax(-1)
        y = batch["paper"].y[: len(guess)]
        counts += torch.stack([(guess == y).sum(), counts.new_tensor(len(guess))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(args: argparse.Namespace, device: torch.device) -> None:
    """The work of one rank."""
    rank = dist.get_rank()
    data = read_graph(args.folder, args.classes) if rank == 0 else None  # (2) one rank reads it
    data = peergraph_pyg.share(data, device=device, storage={"x": args.storage})  # (3) all have it
    data = peergraph_pyg.lazy(data, as_stored=True)  # (4) layers decode the rows of a batch

    torch.manual_seed(42)
    labelled = torch.randperm(args.labelled or data["paper"].num_nodes)
    split = int(0.6 * len(labelled))
    training, validation = labelled[:split], labelled[split:][: max(1, len(labelled) // 200)]
    rgat = RGAT(data, args.hidden, args.classes).to(device)
    rgat = peergraph_pyg.accelerate(rgat)  # (5) faster layers: optional
    # Some layers end in types from which nothing reaches the papers, the same ones in every step.
    model = DistributedDataParallel(rgat, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    for epoch in range(args.epochs):
        model.train()
        with model.join():  # ranks may have different numbers of batches
            for batch in loader(data, training, args.batch_size, shuffle=True):
                batch = batch.to(device)
                optimizer.zero_grad()
                with torch.autocast(device.type, torch.bfloat16):
                    out = model(batch)
                    loss = F.cross_entropy(out, batch["paper"].y[: len(out)])
                loss.backward()
                optimizer.step()
        model.eval()
        score = accuracy(rgat, loader(data, validation, args.batch_size, shuffle=False), device)
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
