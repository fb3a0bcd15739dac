"""In-batch and hard negatives in PyG's LinkNeighborLoader on shared data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import LinkNeighborLoader

import peergraph_pyg
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero

WRITES = ("author", "writes", "paper")


def triplets(batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Sources [P], destinations [P] and negative destinations [P, amount], as ids of the graph."""
    nodes = batch.n_id.cpu()
    return (
        nodes[batch.src_index.cpu()],
        nodes[batch.dst_pos_index.cpu()],
        nodes[batch.dst_neg_index.cpu().reshape(len(batch.src_index), -1)],
    )


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_batch_triplets(disjoint: bool, num_workers: int, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=data.edge_index[:, :100],
        neg_sampling=peergraph_pyg.InBatchNegatives(3),
        batch_size=50,
        disjoint=disjoint,
        num_workers=num_workers,
    )
    for batch in loader:
        check_batch(batch, data)
        source, destination, negatives = triplets(batch)
        links = data.edge_index[:, batch.input_id.cpu()]
        assert torch.stack([source, destination]).equal(links)
        assert negatives.shape == (50, 3)
        assert set(negatives.flatten().tolist()) <= set(destination.tolist())
        positives = set(zip(source.tolist(), destination.tolist(), strict=True))
        for i in range(50):
            assert positives.isdisjoint((int(source[i]), n) for n in negatives[i].tolist())


@pytest.mark.parametrize("disjoint", [False, True])
def test_hard_triplets(disjoint: bool, device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    candidates = (torch.arange(60)[:, None] + torch.tensor([7, 11])) % 60
    loader = LinkNeighborLoader(
        shared,
        [3],
        edge_label_index=data.edge_index[:, :100],
        neg_sampling=peergraph_pyg.HardNegatives(candidates.to(device), 4),
        batch_size=40,
        disjoint=disjoint,
    )
    for batch in loader:
        source, _, negatives = triplets(batch)
        steps = (negatives - source[:, None]) % 60
        assert set(steps.flatten().tolist()) == {7, 11}


def test_binary_and_typed(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    links = data[WRITES].edge_index[:, :60]
    for negatives, count in (
        (peergraph_pyg.InBatchNegatives(1.5, "binary"), 30),
        (peergraph_pyg.HardNegatives(torch.arange(25)[:, None], 1.5, "binary"), 30),
    ):
        loader = LinkNeighborLoader(
            shared,
            [3],
            edge_label_index=(WRITES, links),
            neg_sampling=negatives,
            batch_size=20,
        )
        for batch in loader:
            index = batch[WRITES].edge_label_index.cpu()
            assert batch[WRITES].edge_label.tolist() == [1.0] * 20 + [0.0] * count
            ends = (
                batch["author"].n_id.cpu()[index[0]],
                batch["paper"].n_id.cpu()[index[1]],
            )
            # Negative i belongs to positive i % P.
            assert ends[0][20:].equal(ends[0][:20].repeat(2)[:count])
            if isinstance(negatives, peergraph_pyg.HardNegatives):
                assert ends[1][20:].equal(ends[0][20:])
            else:
                assert set(ends[1][20:].tolist()) <= set(ends[1][:20].tolist())


def test_errors() -> None:
    data = random_data()
    data.time = torch.arange(60)
    shared = peergraph_pyg.share(data)
    timed = LinkNeighborLoader(
        shared,
        [3],
        edge_label_index=data.edge_index,
        edge_label_time=torch.full((400,), 60),
        time_attr="time",
        neg_sampling=peergraph_pyg.InBatchNegatives(1),
    )
    with pytest.raises(NotImplementedError, match="InBatchNegatives with time_attr"):
        next(iter(timed))
    with pytest.raises(NotImplementedError, match=r"data that peergraph_pyg.share\(\) returned"):
        peergraph_pyg.InBatchNegatives(1).sample(3, "dst", 4)
    with pytest.raises(ValueError, match="candidates must be int64"):
        peergraph_pyg.HardNegatives(torch.zeros(3, 2), 1)
