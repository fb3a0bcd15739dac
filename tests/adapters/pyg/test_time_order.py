"""Temporal batches in pyg-lib's order, beside plain loops over what pyg-lib does.

What pyg-lib draws at random comes in the order of the draws, which are its own; here that is in the
order of time, too.
"""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from tests.adapters.pyg.timed_batches import check_last, timed_data
from tests.named_case import named_cases


@pytest.mark.parametrize("attribute", ["stamp", "edge_stamp"])
@named_cases("fanouts", [[-1, -1], [3, 2], [1], [20, 20], [7, -1]])
def test_the_most_recent(attribute: str, fanouts: list[int], device: torch.device) -> None:
    data = timed_data(attribute)
    shared = peergraph_pyg.share(data, device=device)
    latest = data.stamp if attribute == "stamp" else torch.arange(60)
    loader = NeighborLoader(
        shared,
        fanouts,
        input_nodes=torch.arange(60),
        input_time=latest,
        time_attr=attribute,
        temporal_strategy="last",
        batch_size=13,
    )
    for batch in loader:
        check_last(batch, data, fanouts, latest[batch.input_id.cpu()])


@pytest.mark.parametrize("attribute", ["stamp", "edge_stamp"])
def test_all_neighbours_before_a_time(attribute: str, device: torch.device) -> None:
    data = timed_data(attribute)
    shared = peergraph_pyg.share(data, device=device)
    latest = torch.full((60,), 20)
    loader = NeighborLoader(
        shared, [-1, 60], torch.arange(60), latest, time_attr=attribute, batch_size=60
    )
    (batch,) = loader
    check_last(batch, data, [-1, -1], latest)


@pytest.mark.parametrize("attribute", ["stamp", "edge_stamp"])
def test_random_ones_come_in_the_order_of_time(attribute: str, device: torch.device) -> None:
    data = timed_data(attribute)
    shared = peergraph_pyg.share(data, device=device)
    latest = torch.full((60,), 90)
    loader = NeighborLoader(
        shared, [4, 4], torch.arange(60), latest, time_attr=attribute, batch_size=7
    )
    for batch in loader:
        col, e_id = batch.edge_index[1].cpu(), batch.e_id.cpu()
        keys = torch.stack([data.times[e_id], e_id], dim=1).tolist()
        for target in col.unique():
            of_target = [keys[at] for at in (col == target).nonzero().view(-1)]
            assert of_target == sorted(of_target)


def test_long_lists(device: torch.device) -> None:
    """On a GPU, lists of more than 256 and of more than 2048 take other ways."""
    random = torch.Generator().manual_seed(7)
    degrees = torch.tensor([0, 1, 31, 33, 255, 257, 2047, 2100, 5000])
    target = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
    stamp = torch.randint(1000, (len(target),), generator=random)
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = len(target), len(degrees)
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(len(target)), target])
    data["a", "to", "b"].stamp = stamp
    shared = peergraph_pyg.share(data, device=device)
    order = stamp.argsort(stable=True)
    order = order[target[order].argsort(stable=True)]
    order = order[stamp[order] <= 900]
    for fanout in (-1, 20, 300, 3000):
        loader = NeighborLoader(
            shared,
            [fanout],
            ("b", None),
            torch.full((len(degrees),), 900),
            time_attr="stamp",
            temporal_strategy="last",
            batch_size=len(degrees),
        )
        (batch,) = loader
        lists = [order[target[order] == node] for node in range(len(degrees))]
        latest = [ids if fanout < 0 else ids[max(len(ids) - fanout, 0) :] for ids in lists]
        assert torch.equal(batch["a", "to", "b"].e_id.cpu(), torch.cat(latest))
