"""GraphSAGE with DDP and PyG's NeighborLoader, on a graph that all ranks share.

    torchrun --nproc-per-node 2 examples/sage_pyg.py            # one rank per GPU
    torchrun --nproc-per-node 2 examples/sage_pyg.py --device cpu

The script is PyG's usual one; the lines that use Peergraph are marked with (1), (2) and (3).
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import stochastic_blockmodel_graph

import peergraph_pyg  # (1)


def make_graph(num_nodes: int = 2000, num_classes: int = 5) -> Data:
    """Communities: most edges stay inside one, features say little about which one it is."""
    torch.manual_seed(0)
    sizes = [num_nodes // num_classes] * num_classes
    inside, between = 30 / sizes[0], 2 / num_nodes
    probabilities = torch.full((num_classes, num_classes), between).fill_diagonal_(inside)
    y = torch.arange(num_classes).repeat_interleave(sizes[0])
    x = F.one_hot(y, num_classes) + 1.5 * torch.randn(len(y), num_classes)
    split = torch.rand(len(y))
    return Data(
        x=x,
        y=y,
        edge_index=stochastic_blockmodel_graph(sizes, probabilities),
        train_mask=split < 0.3,
        test_mask=split >= 0.3,
    )


class SAGE(torch.nn.Module):
    """Two layers of mean aggregation."""

    def __init__(self, num_features: int, num_hidden: int, num_classes: int) -> None:
        super().__init__()
        self.first = SAGEConv(num_features, num_hidden)
        self.second = SAGEConv(num_hidden, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def loader(data: Data, nodes: Tensor, shuffle: bool) -> NeighborLoader:
    """This rank's share of the nodes."""
    share = nodes[dist.get_rank() :: dist.get_world_size()]
    return NeighborLoader(data, [10, 10], input_nodes=share, batch_size=128, shuffle=shuffle)


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Data, device: torch.device) -> float:
    """Over the test nodes of all ranks."""
    counts = torch.zeros(2, device=device)
    for batch in loader(data, data.test_mask.nonzero().view(-1), shuffle=False):
        batch = batch.to(device)
        guess = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(-1)
        counts += torch.stack(
            [(guess == batch.y[: batch.batch_size]).sum(), counts.new_tensor(len(guess))]
        )
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(device: torch.device, epochs: int) -> None:
    """The work of one rank."""
    rank = dist.get_rank()
    data = make_graph() if rank == 0 else None  # (2) one rank has the graph
    data = peergraph_pyg.share(data, device=device)  # (3) all ranks have it

    torch.manual_seed(rank)
    model = DistributedDataParallel(SAGE(data.num_features, 64, 5).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    train_nodes = data.train_mask.nonzero().view(-1)
    for epoch in range(epochs):
        model.train()
        with model.join():  # ranks may have different numbers of batches
            for batch in loader(data, train_nodes, shuffle=True):
                batch = batch.to(device)
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
        model.eval()
        score = accuracy(model.module, data, device)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {score:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(device, args.epochs)
    # After the model is gone: the last owner of a process group must not be DDP's reducer. And
    # after a barrier: torch 2.4 waits for Gloo's threads, which may wait for the interpreter.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
