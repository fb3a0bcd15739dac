"""One process: share a graph, sample it with PyG's NeighborLoader, read and write its features.

python examples/single_process.py [--device cpu]
"""

from __future__ import annotations

import argparse

import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg


def make_graph() -> HeteroData:
    """Users who rate films, at random."""
    torch.manual_seed(0)
    data = HeteroData()
    data["user"].x = torch.randn(1000, 16)
    data["film"].x = torch.randn(300, 8)
    ratings = torch.stack([torch.randint(1000, (20_000,)), torch.randint(300, (20_000,))])
    data["user", "rates", "film"].edge_index = ratings
    data["user", "rates", "film"].stars = torch.randint(1, 6, (20_000,))
    data["film", "rated_by", "user"].edge_index = ratings.flip(0)
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="cpu, cuda or cuda:i; default: the GPU if there is one")
    args = parser.parse_args()

    data = peergraph_pyg.share(make_graph(), device=args.device)
    store = peergraph_pyg.store_of(data)
    print(data)
    print(store.plan)

    # Everything below is PyG as usual.
    loader = NeighborLoader(data, [10, 5], input_nodes="film", batch_size=100, shuffle=True)
    for batch in loader:
        stars = batch["user", "rates", "film"].stars
        print(
            f"{batch['film'].batch_size} films, {batch['user'].num_nodes} users, "
            f"mean of {len(stars)} ratings: {stars.double().mean():.2f}"
        )

    links = LinkNeighborLoader(
        data,
        [10, 5],
        edge_label_index=("user", "rates", "film"),
        neg_sampling="binary",
        batch_size=4000,
    )
    for batch in links:
        label = batch["user", "rates", "film"].edge_label
        print(f"{len(label)} links, {int(label.sum())} of them real")

    # A shared tensor is read by rows, and written by rows.
    films = torch.tensor([3, 5], device=store.device)
    data["film"].x[films] = 1.0
    print(data["film"].x)
    print(data["film"].x[films].sum().item())
    store.close()


if __name__ == "__main__":
    main()
