"""Temporal batches in pyg-lib's order, beside plain loops over what pyg-lib does.

pyg-lib takes lists that PyG has sorted by time (a stable sort, for the graph and the attribute):
it cuts them off behind the seed's time, takes all that is left or, of "last", the end of it, and
numbers nodes as it finds them. What it draws at random comes in the order of the draws, which are
its own; here that is in the order of time, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from tests.adapters.pyg.graphs import random_data
from tests.named_case import named_cases


def timed_data(attribute: str) -> Data:
    """Times that come in any order, and many of them twice."""
    data = random_data()
    random = torch.Generator().manual_seed(5)
    data.stamp = torch.randint(30, (60,), generator=random)
    data.edge_stamp = torch.randint(100, (400,), generator=random)
    data.times = data.edge_stamp if attribute == "edge_stamp" else data.stamp[data.edge_index[0]]
    return data


def pyg_lib_hops(data: Data, seeds: Tensor, latest: Tensor, fanouts: list[int]) -> dict[str, Any]:
    """What pyg-lib finds with "last", or with fanouts of -1; each seed has nodes of its own."""
    order = data.times.argsort(stable=True)
    order = order[data.edge_index[1][order].argsort(stable=True)]
    source, target = data.edge_index[:, order].tolist()
    times = data.times[order].tolist()
    nodes = list(enumerate(seeds.tolist()))
    number = {node: at for at, node in enumerate(nodes)}
    row, col, edges = [], [], []
    begin = 0
    for fanout in fanouts:
        end = len(nodes)
        for at in range(begin, end):
            tree, node = nodes[at]
            admitted = [
                e for e in range(len(times)) if target[e] == node and times[e] <= int(latest[tree])
            ]
            for e in admitted if fanout < 0 else admitted[max(len(admitted) - fanout, 0) :]:
                found = tree, source[e]
                if found not in number:
                    number[found] = len(nodes)
                    nodes.append(found)
                row.append(number[found])
                col.append(at)
                edges.append(int(order[e]))
        begin = end
    return {
        "n_id": [node for _, node in nodes],
        "batch": [tree for tree, _ in nodes],
        "edge_index": [row, col],
        "e_id": edges,
    }


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
        seeds = batch.input_id.cpu()
        expected = pyg_lib_hops(data, seeds, latest[seeds], fanouts)
        for name, values in expected.items():
            assert batch[name].tolist() == values, name


@pytest.mark.parametrize("attribute", ["stamp", "edge_stamp"])
def test_all_neighbours_before_a_time(attribute: str, device: torch.device) -> None:
    data = timed_data(attribute)
    shared = peergraph_pyg.share(data, device=device)
    latest = torch.full((60,), 20)
    loader = NeighborLoader(
        shared, [-1, 60], torch.arange(60), latest, time_attr=attribute, batch_size=60
    )
    (batch,) = loader
    expected = pyg_lib_hops(data, torch.arange(60), latest, [-1, -1])
    for name, values in expected.items():
        assert batch[name].tolist() == values, name


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
        taken = [ids if fanout < 0 else ids[max(len(ids) - fanout, 0) :] for ids in lists]
        assert torch.equal(batch["a", "to", "b"].e_id.cpu(), torch.cat(taken))
