"""Windows of time in PyG's loaders, and lists that `share` sorts, beside plain loops.

A window begins at a start of the seed, or a length before its time; both ends count.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

import peergraph_pyg
from tests.adapters.pyg.timed_batches import LEAST, check_last, timed_data
from tests.named_case import named_case, named_cases
from tests.pairwise import pairwise


@named_cases(
    ("attribute", "sort", "window", "start"),
    pairwise(["stamp", "edge_stamp"], [False, True], [None, 0, 9, 2**63 - 1], [False, True]),
)
def test_nodes(
    device: torch.device, attribute: str, sort: bool, window: int | None, start: bool
) -> None:
    data = timed_data(attribute)
    shared = peergraph_pyg.share(data, device=device, time_attr=attribute if sort else None)
    assert torch.equal(shared.edge_index.cpu(), data.edge_index)
    latest = torch.arange(60) % 31 if attribute == "stamp" else torch.arange(60)
    starts = latest - torch.arange(60) % 13
    options: dict[str, Any] = {} if window is None else {"time_window": window}
    if start:
        options["input_start_time"] = starts
    for fanouts in ([3, 2], [-1, 1]):
        with named_case(fanouts):
            loader = NeighborLoader(
                shared,
                fanouts,
                input_nodes=torch.arange(60),
                input_time=latest,
                time_attr=attribute,
                temporal_strategy="last",
                batch_size=13,
                shuffle=True,
                **options,
            )
            assert (loader.node_sampler.core._time_order is not None) == sort
            for batch in loader:
                seeds = batch.input_id.cpu()
                first = torch.full_like(seeds, LEAST)
                if window is not None:
                    first = (latest[seeds] - window).maximum(first)
                if start:
                    first = first.maximum(starts[seeds])
                check_last(batch, data, fanouts, latest[seeds], first)


@named_cases(
    ("negatives", "typed", "sort"),
    pairwise([None, "binary", "triplet"], ["", "two types", "one type"], [False, True]),
)
def test_links(device: torch.device, negatives: str | None, typed: str, sort: bool) -> None:
    """Every edge is in the window of its link; with all neighbours, none of these is missing."""
    random = torch.Generator().manual_seed(8)
    edges = torch.randint(40, (2, 300), generator=random)
    stamp = torch.randint(50, (300,), generator=random)
    links, ends = torch.arange(0, 300, 7), ("user", "user" if typed == "one type" else "item")
    key = (ends[0], "to", ends[1])
    back = (ends[1], "back", ends[0])
    data: Any
    if typed:
        data = HeteroData()
        for node_type in set(ends):
            data[node_type].x = torch.rand(40, 2)
        data[key].edge_index, data[key].edge_stamp = edges, stamp
        data[back].edge_index, data[back].edge_stamp = edges.flip(0), stamp
        label_index: Any = (key, edges[:, links])
    else:
        data = Data(x=torch.rand(40, 2), edge_index=edges, edge_stamp=stamp)
        label_index = edges[:, links]
    shared = peergraph_pyg.share(data, device=device, time_attr="edge_stamp" if sort else None)
    latest, starts = stamp[links], stamp[links] - links % 11
    loader = LinkNeighborLoader(
        shared,
        [-1],
        edge_label_index=label_index,
        edge_label_time=latest,
        edge_label_start_time=starts,
        time_attr="edge_stamp",
        neg_sampling=None if negatives is None else {"mode": negatives, "amount": 2},
        batch_size=5,
    )
    edges_seen = 0
    for batch in loader:
        input_id = (batch[key] if typed else batch).input_id.cpu()
        for edge_type in (key, back) if typed else (None,):
            store = batch if edge_type is None else batch[edge_type]
            of_targets = batch if edge_type is None else batch[edge_type[2]]
            tree = of_targets.batch.cpu()[store.edge_index[1].cpu()]
            times = store.edge_stamp.cpu()
            assert bool((times <= latest[input_id[tree]]).all())
            assert bool((times >= starts[input_id[tree]]).all())
            # Seeds are the first nodes; each has all its edges in the window.
            target = edges[1] if edge_type in (None, key) else edges[0]
            for row in range(min(4, len(input_id))):
                link = input_id[of_targets.batch[row].cpu()]
                admitted = (target == int(of_targets.n_id[row])) & (stamp <= latest[link])
                admitted &= stamp >= starts[link]
                assert int((store.edge_index[1] == row).sum()) == int(admitted.sum())
            edges_seen += len(times)
    assert edges_seen > 50


def test_uniform_draws_in_windows(device: torch.device) -> None:
    """Each neighbour in the window is drawn equally often, and no other."""
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 60, 1
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(60), torch.zeros(60).long()])
    data["a", "to", "b"].stamp = torch.arange(60)
    shared = peergraph_pyg.share(data, device=device, time_attr="stamp")
    count = 3000
    loader = NeighborLoader(
        shared,
        [4],
        ("b", torch.zeros(count).long()),
        torch.full((count,), 39),
        time_attr="stamp",
        time_window={("a", "to", "b"): 19},
        batch_size=1000,
    )
    drawn = torch.cat([batch["a", "to", "b"].stamp.cpu() for batch in loader])
    counts = drawn.bincount(minlength=60)
    assert len(drawn) == 4 * count
    assert int(counts[:20].sum() + counts[40:].sum()) == 0
    # 600 expected; the deviation of one count is about 22.
    assert float((counts[20:40] - 600).abs().max()) < 6 * 22


def test_sorted_lists_keep_edges_and_ids(device: torch.device) -> None:
    data = timed_data("edge_stamp")
    plain, by_time = (
        peergraph_pyg.share(data, device=device, time_attr=name) for name in (None, "edge_stamp")
    )
    for seeds in (torch.arange(60), torch.tensor([7, 7, 3])):
        batches = [
            next(iter(NeighborLoader(d, [-1, -1], input_nodes=seeds, batch_size=60)))
            for d in (plain, by_time)
        ]
        by_id = [batch.e_id.sort().values.cpu() for batch in batches]
        assert torch.equal(*by_id)
        for batch in batches:
            ends = batch.n_id[batch.edge_index].cpu()
            assert torch.equal(ends, data.edge_index[:, batch.e_id.cpu()])
            assert torch.equal(batch.edge_stamp.cpu(), data.edge_stamp[batch.e_id.cpu()])


def test_loaders_share_a_sampler(device: torch.device) -> None:
    """The window of one loader does not change the other's."""
    data = peergraph_pyg.share(timed_data("stamp"), device=device)
    sampler = peergraph_pyg.NeighborSampler(data, [-1], time_attr="stamp")
    options = {"input_nodes": torch.arange(60), "input_time": torch.full((60,), 30)}
    windowed = NeighborLoader(
        data, [-1], neighbor_sampler=sampler, time_attr="stamp", time_window=3, **options
    )
    other = NeighborLoader(data, [-1], neighbor_sampler=sampler, time_attr="stamp", **options)
    assert windowed.node_sampler.time_window == 3
    assert other.node_sampler is sampler
    assert sampler.time_window is None
    for loader, least in ((windowed, 27), (other, 0)):
        stamps = torch.cat([b.stamp[b.edge_index[0]] for b in loader]).cpu()
        assert int(stamps.min()) >= least
        assert (int(stamps.min()) < 20) == (least == 0)


def test_errors(device: torch.device) -> None:
    data = timed_data("stamp")
    with pytest.raises(ValueError, match="time_attr: neither nodes nor edges have.*'late'"):
        peergraph_pyg.share(data, device=device, time_attr="late")
    with pytest.raises(TypeError, match="time_attr: expected one column of int32 or int64"):
        peergraph_pyg.share(data, device=device, time_attr="x")
    shared = peergraph_pyg.share(data, device=device)
    nodes, late = torch.arange(60), torch.full((60,), 30)
    with pytest.raises(ValueError, match="time_window: the sampler has no time_attr"):
        NeighborLoader(shared, [3], nodes, time_window=3)
    with pytest.raises(ValueError, match="input_start_time: the sampler has no time_attr"):
        NeighborLoader(shared, [3], nodes, input_start_time=late)
    with pytest.raises(ValueError, match=r"time_window: expected 0 .. 2\*\*63 - 1, got -1"):
        NeighborLoader(shared, [3], nodes, late, time_attr="stamp", time_window=-1)
    with pytest.raises(ValueError, match="input_start_time: expected 60 times"):
        NeighborLoader(shared, [3], nodes, late, time_attr="stamp", input_start_time=late[:5])
    with pytest.raises(TypeError, match="time_window"):
        NeighborLoader(data, [3], nodes, time_window=3)
