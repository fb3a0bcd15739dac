"""Nodes without features: embeddings trained in the store, with PyG's NeighborLoader and DDP.

    torchrun --nproc-per-node 2 examples/embeddings_pyg.py            # one rank per GPU
    torchrun --nproc-per-node 2 examples/embeddings_pyg.py --device cpu

Users rate films; what is learned is the genre of a film. The lines that use Peergraph are marked.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

import peergraph  # (1)
import peergraph_pyg  # (1)

RATES, RATED_BY = ("user", "rates", "film"), ("film", "rated_by", "user")


def make_graph(num_users: int = 2000, num_films: int = 1200, num_genres: int = 4) -> HeteroData:
    """Each user likes one genre, and four of five ratings are of films of that genre."""
    torch.manual_seed(0)
    genre = torch.arange(num_films) % num_genres
    likes = torch.randint(num_genres, (num_users,))
    users = torch.arange(num_users).repeat_interleave(12)
    films = torch.randint(num_films // num_genres, users.shape) * num_genres + likes[users]
    films = torch.where(torch.rand(users.shape) < 0.2, torch.randint_like(films, num_films), films)
    data = HeteroData()
    data["user"].num_nodes = num_users
    data["film"].num_nodes = num_films
    data["film"].y = genre
    data["film"].train_mask = torch.rand(num_films) < 0.5
    data[RATES].edge_index = torch.stack([users, films])
    data[RATED_BY].edge_index = torch.stack([films, users])
    return data


class Model(torch.nn.Module):
    """Films tell about users, users about films."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.to_users = SAGEConv((width, width), width)
        self.to_films = SAGEConv((width, width), num_classes)

    def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
        users = self.to_users((x["film"], x["user"]), edge_index[RATED_BY]).relu()
        return self.to_films((users, x["film"]), edge_index[RATES])


def loader(data: HeteroData, nodes: Tensor, shuffle: bool) -> NeighborLoader:
    """This rank's share of the films."""
    share = nodes[dist.get_rank() :: dist.get_world_size()]
    return NeighborLoader(
        data, [10, 10], input_nodes=("film", share), batch_size=64, shuffle=shuffle
    )


def train(device: torch.device, epochs: int) -> None:
    """The work of one rank."""
    rank = dist.get_rank()
    data = make_graph() if rank == 0 else None
    data = peergraph_pyg.share(data, device=device)  # (2) all ranks have the graph
    store = peergraph_pyg.store_of(data)
    embeddings = {  # (3) instead of torch.nn.Embedding(num_nodes, 32, sparse=True)
        kind: peergraph.Embedding(store, 32, node_type=kind) for kind in ("user", "film")
    }

    torch.manual_seed(rank)
    model = DistributedDataParallel(Model(32, 4).to(device))
    dense = torch.optim.Adam(model.parameters(), lr=0.01)
    sparse = peergraph.optim.SparseAdam(embeddings.values(), lr=0.01)  # (4) torch.optim.SparseAdam

    def run(batch: HeteroData) -> tuple[Tensor, Tensor]:
        batch = batch.to(device)
        x = {kind: embedding(batch[kind].n_id) for kind, embedding in embeddings.items()}
        count = batch["film"].batch_size
        return model(x, batch.edge_index_dict)[:count], batch["film"].y[:count]

    mask = data["film"].train_mask
    train_films, test_films = mask.nonzero().view(-1), (~mask).nonzero().view(-1)
    for epoch in range(epochs):
        model.train()
        with Join([model, sparse]):  # ranks may have different numbers of batches
            for batch in loader(data, train_films, shuffle=True):
                dense.zero_grad()
                sparse.zero_grad()
                loss = F.cross_entropy(*run(batch))
                loss.backward()
                dense.step()
                sparse.step()
        model.eval()
        counts = torch.zeros(2, device=device)
        with torch.no_grad():
            for batch in loader(data, test_films, shuffle=False):
                guess, genre = run(batch)
                right = (guess.argmax(-1) == genre).sum()
                counts += torch.stack([right, right.new_tensor(len(genre))])
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch + 1}: test accuracy {float(counts[0] / counts[1]):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=8)
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
