"""PyG's options for how neighbours are chosen: replace, weights, times, induced subgraphs."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NegativeSampling, NeighborSampler

import peergraph_pyg
from tests.adapters.pyg.graphs import check_batch, full_hops, random_data, random_hetero


def timed_data(of: str) -> Data:
    data = random_data()
    random = torch.Generator().manual_seed(7)
    count = data.num_nodes if of == "nodes" else data.num_edges
    data.stamp = torch.randint(0, 30, (count,), generator=random)
    if of == "edges":
        data.edge_stamp = data.stamp
        del data.stamp
    return data


def timed_hetero() -> HeteroData:
    data = random_hetero()
    data["paper"].stamp = torch.arange(40) % 11
    data["author"].stamp = torch.arange(25) % 9
    return data


def test_replace(device: torch.device) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    degree = torch.bincount(data.edge_index[1], minlength=60)
    for batch in NeighborLoader(shared, [7], replace=True, batch_size=20):
        check_batch(batch, data)
        drawn = torch.bincount(batch.edge_index[1].cpu(), minlength=20)[:20]
        assert torch.equal(drawn, 7 * (degree[batch.input_id] > 0))


def test_weights(device: torch.device) -> None:
    data = random_data()
    data.edge_weight = (torch.arange(400) % 3 == 0).double()
    shared = peergraph_pyg.share(data, device=device)
    degree = torch.bincount(data.edge_index[1], minlength=60)
    heavy = torch.bincount(data.edge_index[1], data.edge_weight, minlength=60)
    for batch in NeighborLoader(shared, [2], weight_attr="edge_weight", batch_size=20):
        check_batch(batch, data)
        edges = torch.bincount(batch.edge_index[1].cpu(), minlength=20)[:20]
        assert torch.equal(edges, degree[batch.input_id].clamp(max=2))
        weights = data.edge_weight[batch.e_id.cpu()]
        weight_sums = torch.bincount(batch.edge_index[1].cpu(), weights, minlength=20)[:20]
        assert torch.equal(weight_sums, heavy[batch.input_id].clamp(max=2))


def test_weights_by_edge_type() -> None:
    data = random_hetero()
    cites = ("paper", "cites", "paper")
    data[cites].w = (torch.arange(200) < 100).float()
    shared = peergraph_pyg.share(data, device="cpu")
    loader = NeighborLoader(
        shared, [1], input_nodes="paper", weight_attr="w", batch_size=40, replace=True
    )
    (batch,) = loader
    light = data[cites].edge_index[1][:100]
    only_light = ~torch.isin(batch["paper"].n_id[batch[cites].edge_index[1]], light)
    assert ((batch[cites].e_id < 100) | only_light).all()
    assert batch["venue", "prints", "paper"].e_id.numel() > 0


@pytest.mark.parametrize("of", ["nodes", "edges"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_times(device: torch.device, of: str, strategy: str) -> None:
    data = timed_data(of)
    name = "stamp" if of == "nodes" else "edge_stamp"
    shared = peergraph_pyg.share(data, device=device)
    latest = torch.randint(0, 30, (60,), generator=torch.Generator().manual_seed(1))
    loader = NeighborLoader(
        shared,
        [3, 2],
        input_nodes=torch.arange(60),
        input_time=latest,
        time_attr=name,
        temporal_strategy=strategy,
        batch_size=16,
    )
    for batch in loader:
        check_batch(batch, data)
        assert torch.equal(batch.seed_time.cpu(), latest[batch.input_id])
        row, col = batch.edge_index.cpu()
        tree = batch.batch.cpu()
        assert torch.equal(tree[row], tree[col])
        times = data[name][batch.n_id.cpu()[row]] if of == "nodes" else data[name][batch.e_id.cpu()]
        assert times.numel() > 0
        assert (times <= latest[batch.input_id][tree[col]]).all()


def test_workers() -> None:
    data = timed_data("nodes")
    data.edge_weight = data.edge_weight + 1
    shared = peergraph_pyg.share(data, device="cpu")
    options = {"time_attr": "stamp", "weight_attr": "edge_weight", "num_workers": 2}
    for batch in NeighborLoader(shared, [3, 2], batch_size=20, **options):
        check_batch(batch, data)
        latest = data.stamp[batch.input_id]
        assert (data.stamp[batch.n_id] <= latest[batch.batch]).all()


def test_last_are_the_most_recent() -> None:
    data = timed_data("edges")
    shared = peergraph_pyg.share(data, device="cpu")
    latest = torch.full((60,), 20)
    loader = NeighborLoader(
        shared,
        [2],
        input_nodes=torch.arange(60),
        input_time=latest,
        time_attr="edge_stamp",
        temporal_strategy="last",
        batch_size=60,
    )
    (batch,) = loader
    for node in range(60):
        times = data.edge_stamp[data.edge_index[1] == node]
        want = times[times <= 20].sort().values[-2:]
        got = data.edge_stamp[batch.e_id[batch.edge_index[1] == node]].sort().values
        assert torch.equal(got, want)


def test_last_with_replacement(device: torch.device) -> None:
    """As many draws as the fanout says, among as many of the most recent ones."""
    data = timed_data("edges")
    data.edge_stamp = torch.randperm(400, generator=torch.Generator().manual_seed(3))
    shared = peergraph_pyg.share(data, device=device)
    options = {"input_nodes": torch.arange(60), "input_time": torch.full((60,), 250)}
    loader = NeighborLoader(
        shared,
        [3],
        replace=True,
        time_attr="edge_stamp",
        temporal_strategy="last",
        batch_size=60,
        **options,
    )
    drawn_edges: list[set[int]] = [set() for _ in range(60)]
    for _ in range(60):
        (batch,) = loader
        check_batch(batch, data)
        for edge, target in zip(batch.e_id.tolist(), batch.edge_index[1].tolist(), strict=True):
            drawn_edges[target].add(edge)
    drawn = torch.bincount(batch.edge_index[1].cpu(), minlength=60)
    for node in range(60):
        into = (data.edge_index[1] == node).nonzero().view(-1)
        into = into[data.edge_stamp[into] <= 250]
        recent = into[data.edge_stamp[into].argsort()[-3:]]
        assert drawn_edges[node] == set(recent.tolist())
        assert int(drawn[node]) == 3 * (len(recent) > 0)


@pytest.mark.parametrize("stores", [False, True])
def test_times_of_several_types(device: torch.device, stores: bool) -> None:
    data = timed_hetero()
    shared = peergraph_pyg.share(data, device=device)
    if stores:
        shared = peergraph_pyg.stores(peergraph_pyg.store_of(shared))
    loader = NeighborLoader(
        shared, [3, 2], input_nodes=("paper", torch.arange(40)), time_attr="stamp", batch_size=9
    )
    for batch in loader:
        latest = data["paper"].stamp[batch["paper"].input_id]
        for node_type in ("paper", "author"):
            times = data[node_type].stamp[batch[node_type].n_id.cpu()]
            assert (times <= latest[batch[node_type].batch.cpu()]).all()
        assert batch["venue"].n_id.numel() >= 0


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_links_with_times(device: torch.device, of: str, mode: str) -> None:
    data = timed_data(of)
    shared = peergraph_pyg.share(data, device=device)
    latest = torch.randint(20, 30, (400,), generator=torch.Generator().manual_seed(2))
    loader = LinkNeighborLoader(
        shared,
        [3, 2],
        edge_label_index=data.edge_index,
        edge_label_time=latest,
        time_attr="stamp" if of == "nodes" else "edge_stamp",
        neg_sampling=NegativeSampling(mode, amount=2),
        batch_size=50,
    )
    for batch in loader:
        check_batch(batch, data)
        row = batch.edge_index[0].cpu()
        times = data.stamp[batch.n_id.cpu()[row]] if of == "nodes" else batch.edge_stamp.cpu()
        assert (times <= latest[batch.input_id][batch.batch.cpu()[row]]).all()


@pytest.mark.parametrize("directed", [False, True])
def test_induced(device: torch.device, directed: bool) -> None:
    data = random_data()
    shared = peergraph_pyg.share(data, device=device)
    options = {"subgraph_type": "induced"} if directed else {"directed": False}
    for batch in NeighborLoader(shared, [-1], batch_size=13, **options):
        check_batch(batch, data)
        nodes = full_hops(data.edge_index, batch.input_id, 1)["n_id"]
        assert torch.equal(batch.n_id.cpu(), nodes)
        inside = torch.isin(data.edge_index, nodes).all(dim=0)
        assert torch.equal(batch.e_id.cpu().sort().values, inside.nonzero().view(-1))
        assert "num_sampled_nodes" not in batch
        assert "num_sampled_edges" not in batch


def test_induced_with_types(device: torch.device) -> None:
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=device)
    loader = NeighborLoader(
        shared, [2], input_nodes=("paper", torch.arange(40)), subgraph_type="induced", batch_size=9
    )
    for batch in loader:
        for edge_type in data.edge_types:
            ends = data[edge_type].edge_index
            inside = torch.isin(ends[0], batch[edge_type[0]].n_id.cpu())
            inside &= torch.isin(ends[1], batch[edge_type[2]].n_id.cpu())
            assert torch.equal(batch[edge_type].e_id.cpu().sort().values, inside.nonzero().view(-1))


def test_what_is_no_shared_attribute() -> None:
    data = timed_data("nodes")
    shared = peergraph_pyg.share(data, device="cpu")
    with pytest.raises(ValueError, match="weight_attr: no edge type has an attribute 'w'"):
        NeighborSampler(shared, [2], weight_attr="w")
    with pytest.raises(ValueError, match="time_attr: neither nodes nor edges have .* 't'"):
        NeighborSampler(shared, [2], time_attr="t")
    timed = peergraph_pyg.share(timed_data("edges"), device="cpu")
    with pytest.raises(ValueError, match="input_time, edge_label_time: needed, as seeds of"):
        next(iter(NeighborLoader(timed, [2], time_attr="edge_stamp")))
    ring = torch.arange(9)
    data = Data(edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=9, w=torch.ones(9))
    with pytest.raises(ValueError, match="weight_attr: 'w' is taken for an attribute of nodes"):
        NeighborSampler(peergraph_pyg.share(data, device="cpu"), [2], weight_attr="w")
    shared.own = torch.arange(400.0)
    with pytest.raises(ValueError, match="'own' must be an attribute that was shared, got Tensor"):
        NeighborSampler(shared, [2], weight_attr="own")
    data = random_data()
    data.edge_weight = data.edge_weight.half()
    halves = peergraph_pyg.share(data, device="cpu")
    with pytest.raises(TypeError, match="weights: expected 'edge_weight' .* got torch.float16"):
        NeighborSampler(halves, [2], weight_attr="edge_weight")


def test_unknown_argument_of_a_sample() -> None:
    shared = peergraph_pyg.share(random_data())
    sampler = peergraph_pyg.NeighborSampler(shared, [2])
    with pytest.raises(NotImplementedError, match="sampling by depth is not supported"):
        sampler._sample(torch.tensor([1]), depth=2)
