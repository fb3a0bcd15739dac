"""In-batch and hard negatives in PyG's LinkNeighborLoader on shared data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.sampler import NegativeSampling

import peergraph_pyg
from tests.adapters.pyg.graphs import check_batch, random_data, random_hetero
from tests.named_case import named_cases
from tests.pairwise import pairwise

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


ALL_NODES = torch.arange(60)
# Two candidates; the times of nodes are their ids modulo 30.
CANDIDATES = (ALL_NODES[:, None] + torch.tensor([7, 11])) % 60


@named_cases(
    ("kind", "mode", "typed", "window"),
    pairwise(
        ["random", "weighted", "in batch", "hard"],
        ["binary", "triplet"],
        [False, True],
        ["none", "length", "start", "both"],
    ),
)
def test_windows(device: torch.device, kind: str, mode: str, typed: bool, window: str) -> None:
    """Negatives are nodes that the link's window admits; links and labels are PyG's."""
    weights = (ALL_NODES % 4).float() if kind == "weighted" else None
    if kind == "in batch":
        negatives: Any = peergraph_pyg.InBatchNegatives(2, mode)
    elif kind == "hard":
        negatives = peergraph_pyg.HardNegatives(CANDIDATES, 2, mode)
    else:
        negatives = NegativeSampling(mode, 2, src_weight=weights, dst_weight=weights)
    random = torch.Generator().manual_seed(8)
    edges, times = torch.randint(60, (2, 200), generator=random), ALL_NODES % 30
    ends = ("user", "item") if typed else ("user", "user")
    data = HeteroData()
    for node_type in set(ends):
        data[node_type].num_nodes, data[node_type].time = 60, times
    data[ends[0], "to", ends[1]].edge_index = edges
    shared = peergraph_pyg.share(data, device=device)
    latest = 15 + torch.arange(200) % 20
    starts = latest - torch.arange(200) % 6 - 4
    first = torch.full_like(latest, -1)
    options: dict[str, Any] = {}
    if window in ("length", "both"):
        first, options["time_window"] = latest - 6, 6
    if window in ("start", "both"):
        first, options["edge_label_start_time"] = first.maximum(starts), starts
    loader = LinkNeighborLoader(
        shared,
        [2],
        edge_label_index=((ends[0], "to", ends[1]), edges),
        edge_label_time=latest,
        time_attr="time",
        neg_sampling=negatives,
        batch_size=80,
        **options,
    )
    for batch in loader:
        store, links = batch[ends[0], "to", ends[1]], batch[ends[0], "to", ends[1]].input_id.cpu()
        nodes = {t: batch[t].n_id.cpu() for t in set(ends)}
        count = len(links)
        positive = torch.arange(count).repeat(2)
        row, col = store.edge_index.cpu()
        link, source_times = links[batch[ends[1]].batch.cpu()[col]], times[nodes[ends[0]][row]]
        assert bool(((source_times >= first[link]) & (source_times <= latest[link])).all())
        if mode == "binary":
            source, destination = store.edge_label_index.cpu()
            source, destination = nodes[ends[0]][source], nodes[ends[1]][destination]
            assert torch.equal(torch.stack([source, destination])[:, :count], edges[:, links])
            negative_source, negative = source[count:], destination[count:]
        else:
            of_source = batch[ends[0]]
            assert torch.equal(nodes[ends[0]][of_source.src_index.cpu()], edges[0, links])
            of_destination = batch[ends[1]]
            negative = nodes[ends[1]][of_destination.dst_neg_index.cpu()].t().flatten()
            negative_source = edges[0, links][positive]
        assert len(negative) == 2 * count
        after, before = first[links][positive], latest[links][positive]
        assert bool(((times[negative] >= after) & (times[negative] <= before)).all())
        if kind == "in batch":
            in_batch = edges[1, links]
            for i, node in enumerate(negative.tolist()):
                in_window = (times[in_batch] >= after[i]) & (times[in_batch] <= before[i])
                is_positive = edges[0, links] == negative_source[i]
                others = {*in_batch[in_window].tolist()} - {*in_batch[is_positive].tolist()}
                assert node in others or not others
        elif kind == "weighted" and window != "none":  # PyG's code may take the oldest node
            assert bool((weights[negative] > 0).all())
        if kind in ("in batch", "hard"):
            assert torch.equal(negative_source, edges[0, links][positive])
        elif mode == "binary":
            assert bool((times[negative_source] >= after).all())
            assert bool((times[negative_source] <= before).all())


def test_times_of_edges_do_not_matter(device: torch.device) -> None:
    """Only nodes with times are kept from being negatives, as in PyG."""
    data = random_data()
    data.edge_time = torch.arange(400)
    shared = peergraph_pyg.share(data, device=device)
    loader = LinkNeighborLoader(
        shared,
        [3],
        edge_label_index=data.edge_index,
        edge_label_time=torch.zeros(400, dtype=torch.int64),
        time_attr="edge_time",
        time_window=0,
        neg_sampling=peergraph_pyg.HardNegatives(CANDIDATES, 1),
        batch_size=400,
    )
    (batch,) = loader
    source, _, negatives = triplets(batch)
    assert set(((negatives - source[:, None]) % 60).flatten().tolist()) == {7, 11}


def test_errors() -> None:
    with pytest.raises(NotImplementedError, match=r"data that peergraph_pyg.share\(\) returned"):
        peergraph_pyg.InBatchNegatives(1).sample(3, "dst", 4)
    with pytest.raises(ValueError, match="candidates must be int64"):
        peergraph_pyg.HardNegatives(torch.zeros(3, 2), 1)
