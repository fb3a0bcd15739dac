"""Every argument of PyG's four loaders and of its sampler: each does what it says, or is refused.

A new version's new argument has no test, so that `test_every_argument_has_a_test` fails.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling, NeighborSampler, NumNeighbors

import peergraph_pyg
from tests.adapters.pyg.graphs import check_batch, full_hops, random_data, random_hetero

LOADERS = [NodeLoader, LinkLoader, NeighborLoader, LinkNeighborLoader]
WRITES = ("author", "writes", "paper")

TESTED: set[str] = set()
"""The arguments that a test of this module is for."""


def arguments(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]


def argument(*names: str, kinds: list[type] | None = None) -> pytest.MarkDecorator:
    """Marks the test of one or more arguments, which runs with each loader that has one of them.

    Args:
        names: of the arguments.
        kinds: the loaders to run with, for arguments that only the sampler has.
    """
    TESTED.update(names)
    cases = kinds or [kind for kind in LOADERS if set(names) & set(arguments(kind))]
    return pytest.mark.parametrize("case", cases, indirect=True, ids=lambda kind: kind.__name__)


def timed() -> Data:
    data = random_data()
    data.stamp = torch.arange(60) % 17
    data.edge_weight = (torch.arange(400) % 3 == 0).double()
    return data


class Case:
    """One loader class over one shared graph."""

    def __init__(self, kind: type, device: torch.device) -> None:
        self.kind = kind
        self.links = "Link" in kind.__name__
        self.data = timed()
        self.shared = peergraph_pyg.share(self.data, device=device)
        self.device = device

    def loader(self, data: Any = None, **options: Any) -> Any:
        data = self.shared if data is None else data
        options = {"batch_size": 16, **options}
        if "Neighbor" in self.kind.__name__:
            return self.kind(data, options.pop("num_neighbors", [3, 2]), **options)
        sampler = options.pop("sampler_of_nodes", None) or NeighborSampler(data, [3, 2])
        return self.kind(data, sampler, **options)

    def batches(self, **options: Any) -> list[Any]:
        """What a loader gives, each checked against the whole graph."""
        result = list(self.loader(**options))
        for batch in result:
            check_batch(batch, self.data)
        return result

    def seeds(self, batch: Any) -> torch.Tensor:
        """The ids in the whole graph of what a batch was made for."""
        n_id = batch.n_id.cpu()
        return n_id[batch.edge_label_index.cpu()] if self.links else n_id[: batch.batch_size]


@pytest.fixture
def case(request: pytest.FixtureRequest, device: torch.device) -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|max number of worker)")
        yield Case(request.param, device)


@pytest.mark.parametrize("kind", LOADERS, ids=lambda kind: kind.__name__)
def test_every_argument_has_a_test(kind: type) -> None:
    for name in arguments(kind):
        assert name in TESTED, f"{name} is new in {kind.__name__}: honour or refuse it, and test it"


def test_sampler_has_no_other_arguments() -> None:
    """Our sampler has the arguments and defaults of PyG's, and docs/guides/pyg.md lists them."""
    ours = inspect.signature(peergraph_pyg.NeighborSampler.__init__).parameters
    for name, theirs in inspect.signature(NeighborSampler.__init__).parameters.items():
        assert name == "self" or name in TESTED
        assert ours[name].default == theirs.default
    page = Path(__file__).parents[3] / "docs" / "guides" / "pyg.md"
    listed = set(re.findall(r"`(\w+)`", page.read_text()))
    assert TESTED - {"kwargs"} <= listed


@argument("data")
def test_data(case: Case) -> None:
    assert type(case.batches()[0]) is Data
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(case.shared))
    for batch in case.loader(pair):
        assert type(batch) is Data
        check_batch(batch, _without(case.data, "graph_label", "name"))
    hetero = peergraph_pyg.share(random_hetero(), device=case.device)
    seeds = {"edge_label_index": WRITES} if case.links else {"input_nodes": "paper"}
    batch = next(iter(case.loader(hetero, **seeds)))
    assert type(batch) is HeteroData
    assert batch[WRITES].edge_attr.shape == (batch[WRITES].num_edges, 2)


def _without(data: Data, *keys: str) -> Data:
    data = data.clone()
    for key in keys:
        del data[key]
    return data


@argument("node_sampler", "link_sampler", "neighbor_sampler")
def test_samplers(case: Case) -> None:
    calls = []

    class Mine(peergraph_pyg.NeighborSampler):
        def _sample(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(len(args))
            return super()._sample(*args, **kwargs)

    mine = Mine(case.shared, [1])
    name = "neighbor_sampler" if "Neighbor" in case.kind.__name__ else "sampler_of_nodes"
    batches = case.batches(**{name: mine})
    assert len(calls) == len(batches)
    assert all(len(batch.num_sampled_edges) == 1 for batch in batches)


@argument("num_neighbors")
def test_num_neighbors(case: Case) -> None:
    for fanouts in ([2], NumNeighbors([2])):
        for batch in case.batches(num_neighbors=fanouts):
            degrees = torch.bincount(batch.edge_index[1].cpu())
            assert int(degrees.max()) <= 2
            assert len(batch.num_sampled_edges) == 1
    for batch in case.batches(num_neighbors=[-1, -1]):
        nodes = batch.n_id.cpu()[: batch.num_sampled_nodes[0]]
        expected = full_hops(case.data.edge_index, nodes, 2)
        assert torch.equal(batch.e_id.cpu(), expected["e_id"])
        assert torch.equal(batch.n_id.cpu(), expected["n_id"])
        assert batch.num_sampled_edges == expected["num_sampled_edges"]
        assert batch.num_sampled_nodes == expected["num_sampled_nodes"]


@argument("input_nodes")
def test_input_nodes(case: Case) -> None:
    mask = case.data.train_mask
    ids = mask.nonzero().view(-1)
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(case.shared))
    for data in (case.shared, pair):
        for input_nodes, nodes, input_id in (
            (None, torch.arange(60), torch.arange(60)),
            (mask, ids, ids),
            (case.shared.train_mask, ids, ids),
            (ids, ids, torch.arange(len(ids))),
            (ids.int().to(case.device), ids, torch.arange(len(ids))),
            (ids.tolist(), ids, torch.arange(len(ids))),
        ):
            batches = list(case.loader(data, input_nodes=input_nodes))
            assert torch.equal(torch.cat([case.seeds(b) for b in batches]), nodes)
            assert torch.equal(torch.cat([b.input_id for b in batches]), input_id)
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=case.device)
    papers = data["paper"].train_mask.nonzero().view(-1)
    for source in (shared, peergraph_pyg.stores(peergraph_pyg.store_of(shared))):
        for input_nodes, nodes in (
            ("paper", torch.arange(40)),
            (("paper", None), torch.arange(40)),
            (("paper", data["paper"].train_mask), papers),
            (("paper", papers), papers),
            (("paper", papers.tolist()), papers),
        ):
            batches = list(case.loader(source, input_nodes=input_nodes))
            seeds = [b["paper"].n_id.cpu()[: b["paper"].batch_size] for b in batches]
            assert torch.equal(torch.cat(seeds), nodes)
            assert all("seed_time" not in b["paper"] for b in batches)


@argument("edge_label_index")
def test_edge_label_index(case: Case) -> None:
    some = torch.tensor([[5, 5, 9], [1, 2, 50]])
    pair = peergraph_pyg.stores(peergraph_pyg.store_of(case.shared))
    for data in (case.shared, pair):
        for edge_label_index, links in (
            (None, case.data.edge_index),
            (some, some),
            (some.to(case.device), some),
            (case.shared.edge_index, case.data.edge_index),
        ):
            batches = list(case.loader(data, edge_label_index=edge_label_index))
            assert torch.equal(torch.cat([case.seeds(b) for b in batches], dim=1), links)
            assert torch.equal(
                torch.cat([b.input_id for b in batches]), torch.arange(links.size(1))
            )
    data = random_hetero()
    shared = peergraph_pyg.share(data, device=case.device)
    links = data[WRITES].edge_index
    for source in (shared, peergraph_pyg.stores(peergraph_pyg.store_of(shared))):
        for edge_label_index in (WRITES, (WRITES, None), (WRITES, links)):
            for batch in case.loader(source, edge_label_index=edge_label_index):
                row, col = batch[WRITES].edge_label_index.cpu()
                ends = torch.stack(
                    [batch["author"].n_id.cpu()[row], batch["paper"].n_id.cpu()[col]]
                )
                assert torch.equal(ends, links[:, batch[WRITES].input_id])


@argument("input_time", "edge_label_time")
def test_times_of_seeds(case: Case) -> None:
    """The time of each seed; it bounds what is drawn, and needs something to compare with."""
    links = case.links
    count = 400 if links else 60
    times = torch.randint(5, 17, (count,), generator=torch.Generator().manual_seed(0))
    seeds = {"edge_label_index": case.data.edge_index} if links else {}
    name = "edge_label_time" if links else "input_time"
    options: dict[str, Any] = {name: times, **seeds}
    if "Neighbor" in case.kind.__name__:
        options["time_attr"] = "stamp"
        without = {"num_neighbors": [2], **options, "time_attr": None}
    else:
        without = dict(options)
        options["sampler_of_nodes"] = NeighborSampler(case.shared, [3, 2], time_attr="stamp")
    for batch in case.batches(**options):
        seed_times = batch.edge_label_time if links else batch.seed_time
        assert torch.equal(seed_times.cpu(), times[batch.input_id])
        neighbours = case.data.stamp[batch.n_id.cpu()[batch.edge_index[0].cpu()]]
        assert (
            neighbours <= times[batch.input_id][batch.batch.cpu()[batch.edge_index[0].cpu()]]
        ).all()
    with pytest.raises(ValueError, match=f"{name}|time_attr"):
        case.loader(**without)


@argument("temporal_strategy")
def test_temporal_strategy(case: Case) -> None:
    times = {"edge_label_index": case.data.edge_index} if case.links else {}
    count = 400 if case.links else 60
    times["edge_label_time" if case.links else "input_time"] = torch.full((count,), 12)
    options = {"num_neighbors": [2], "time_attr": "stamp", **times}
    for batch in case.batches(temporal_strategy="last", **options):
        row, col = batch.edge_index.cpu()
        for target in range(batch.num_sampled_nodes[0]):
            into = case.data.edge_index[0][case.data.edge_index[1] == batch.n_id[target].item()]
            stamps = case.data.stamp[into]
            want = stamps[stamps <= 12].sort().values[-2:]
            got = case.data.stamp[batch.n_id.cpu()[row[col == target]]].sort().values
            assert torch.equal(got, want)
    with pytest.raises(ValueError, match="temporal_strategy"):
        case.loader(temporal_strategy="first", **options)


@argument("transform")
def test_transform(case: Case) -> None:
    def mark(batch: Any) -> Any:
        batch.marked = batch.num_nodes
        return batch

    for workers in (0, 2):
        for batch in case.loader(transform=mark, num_workers=workers):
            assert batch.marked == batch.num_nodes == len(batch.x)


@argument("transform_sampler_output")
def test_transform_sampler_output(case: Case) -> None:
    node_ids = []

    def look(out: Any) -> Any:
        node_ids.append(out.node)
        return out

    batches = case.batches(transform_sampler_output=look)
    assert len(node_ids) == len(batches)
    assert all(torch.equal(a, b.n_id) for a, b in zip(node_ids, batches, strict=True))


@argument("filter_per_worker")
def test_filter_per_worker(case: Case) -> None:
    assert case.loader().filter_per_worker is (case.device.type == "cpu")
    for is_set in (False, True):
        assert case.loader(filter_per_worker=is_set).filter_per_worker is is_set
        torch.manual_seed(0)
        for batch in case.batches(filter_per_worker=is_set, num_workers=2):
            assert batch.x.device.type == case.device.type


@argument("custom_cls")
def test_custom_cls(case: Case) -> None:
    class Mine(Data):
        pass

    pair = peergraph_pyg.stores(peergraph_pyg.store_of(case.shared))
    assert type(next(iter(case.loader(pair, custom_cls=Mine)))) is Mine
    assert type(next(iter(case.loader(custom_cls=Mine)))) is Data  # as in PyG: for stores


@argument("input_id")
def test_input_id(case: Case) -> None:
    count = 400 if case.links else 60
    ids = torch.arange(count) + 1000
    loader = case.loader(input_id=ids)
    assert torch.equal(torch.cat([batch.input_id for batch in loader]), ids)
    if case.links:
        return
    # PyG looks at the ids of nodes only where there are nodes.
    loader = case.loader(input_id=ids, input_nodes=torch.arange(60))
    assert torch.equal(torch.cat([batch.input_id for batch in loader]), ids)
    typed = peergraph_pyg.share(random_hetero(), device=case.device)
    for source in (typed, peergraph_pyg.stores(peergraph_pyg.store_of(typed))):
        for papers in ("paper", ("paper", None)):
            loader = case.loader(source, input_id=ids[:40], input_nodes=papers)
            assert torch.equal(torch.cat([b["paper"].input_id for b in loader]), ids[:40])


@argument("edge_label")
def test_edge_label(case: Case) -> None:
    labels = torch.arange(400) % 5
    for batch in case.batches(edge_label=labels):
        assert torch.equal(batch.edge_label, labels[batch.input_id])
    for batch in case.batches(edge_label=labels, neg_sampling="binary"):
        size = len(batch.input_id)
        assert torch.equal(batch.edge_label[:size], labels[batch.input_id] + 1)
        assert not batch.edge_label[size:].any()
    with pytest.raises(ValueError, match="edge_label"):
        case.loader(edge_label=labels, neg_sampling="triplet")


@argument("neg_sampling")
def test_neg_sampling(case: Case) -> None:
    for neg_sampling in ("binary", NegativeSampling("binary", 2.5), "triplet"):
        for batch in case.batches(neg_sampling=neg_sampling):
            size = len(batch.input_id)
            if neg_sampling == "triplet":
                assert batch.dst_neg_index.shape == (size,)
                continue
            amount = 1 if neg_sampling == "binary" else 2.5
            assert batch.edge_label_index.shape == (2, size + int(np.ceil(size * amount)))


@argument("neg_sampling_ratio")
def test_neg_sampling_ratio(case: Case) -> None:
    for batch in case.batches(neg_sampling_ratio=1.5):
        size = len(batch.input_id)
        assert len(batch.edge_label) == size + int(np.ceil(size * 1.5))


@argument("replace")
def test_replace(case: Case) -> None:
    degree = torch.bincount(case.data.edge_index[1], minlength=60)
    for batch in case.batches(num_neighbors=[7], replace=True):
        seeds = batch.n_id.cpu()[: batch.num_sampled_nodes[0]]
        drawn = torch.bincount(batch.edge_index[1].cpu(), minlength=len(seeds))[: len(seeds)]
        assert torch.equal(drawn, 7 * (degree[seeds] > 0))


@argument("subgraph_type")
def test_subgraph_type(case: Case) -> None:
    for batch in case.batches(subgraph_type="directional"):
        assert batch.num_sampled_edges is not None
    _is_induced(case, case.batches(subgraph_type="induced"))
    for batch in case.loader(subgraph_type="bidirectional"):
        pairs = batch.edge_index.cpu()
        assert torch.equal(pairs.unique(dim=1), pairs.flip(0).unique(dim=1))
        assert "num_sampled_edges" not in batch
    with pytest.raises(ValueError, match="sideways"):
        case.loader(subgraph_type="sideways")


def _is_induced(case: Case, batches: list[Any]) -> None:
    for batch in batches:
        inside = torch.isin(case.data.edge_index, batch.n_id.cpu()).all(dim=0)
        assert torch.equal(batch.e_id.cpu().sort().values, inside.nonzero().view(-1))


@argument("directed")
def test_directed(case: Case) -> None:
    with pytest.warns(UserWarning, match="'directed' is deprecated"):
        _is_induced(case, case.batches(directed=False))


@argument("disjoint")
def test_disjoint(case: Case) -> None:
    assert all("batch" not in batch for batch in case.batches(disjoint=False))
    for batch in case.batches(disjoint=True):
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])
        seeds = len(batch.input_id) * (2 if case.links else 1)
        assert torch.equal(batch.batch[:seeds].cpu(), torch.arange(seeds) % len(batch.input_id))


@argument("time_attr")
def test_time_attr(case: Case) -> None:
    if case.links:  # PyG: both or neither
        with pytest.raises(ValueError, match="edge_label_time"):
            case.loader(time_attr="stamp")
        return
    for batch in case.batches(time_attr="stamp"):  # the seeds' own times
        own = case.data.stamp[batch.input_id]
        assert (batch.stamp.cpu() <= own[batch.batch.cpu()]).all()


@argument("weight_attr")
def test_weight_attr(case: Case) -> None:
    light = case.data.edge_weight == 0
    heavy = torch.bincount(case.data.edge_index[1], ~light, minlength=60)
    for batch in case.batches(num_neighbors=[1], weight_attr="edge_weight"):
        drawn = batch.e_id.cpu()
        targets = case.data.edge_index[1][drawn]
        assert (heavy[targets[light[drawn]]] == 0).all()


@argument("is_sorted")
def test_is_sorted(case: Case) -> None:
    """The store is sorted: it makes no difference."""
    batches = []
    for is_sorted in (False, True):
        torch.manual_seed(4)
        batches.append(case.batches(is_sorted=is_sorted))
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.e_id, other.e_id)


@argument("kwargs")
def test_kwargs(case: Case) -> None:
    """What torch's DataLoader takes."""
    count = 400 if case.links else 60
    sizes = [len(b.input_id) for b in case.batches(batch_size=50, drop_last=True)]
    assert sizes == [50] * (count // 50)
    orders = []
    for _ in range(2):
        shuffled = case.batches(shuffle=True, generator=torch.Generator().manual_seed(3))
        orders.append(torch.cat([batch.input_id for batch in shuffled]))
    assert torch.equal(*orders)
    assert torch.equal(orders[0].sort().values, torch.arange(count))
    assert not torch.equal(orders[0], torch.arange(count))
    picked = case.batches(sampler=torch.utils.data.SubsetRandomSampler([7, 7, 9]))
    assert sorted(picked[0].input_id.tolist()) == [7, 7, 9]
    with pytest.raises(TypeError, match="nonsense"):
        case.loader(nonsense=1)


@argument("share_memory", kinds=[NodeLoader])
def test_share_memory(case: Case) -> None:
    assert NeighborSampler(case.shared, [2], share_memory=True).store.device == case.device


@argument("sample_direction", kinds=[NodeLoader])
def test_sample_direction(case: Case) -> None:
    sampler = NeighborSampler(case.shared, [-1], sample_direction="backward")
    assert sampler.store.reversed() is sampler.store.reversed()


def _to_series(mask: Tensor) -> Any:
    return pytest.importorskip("pandas").Series(mask.numpy())


@pytest.mark.parametrize(
    "kind", [np.asarray, Tensor.tolist, _to_series], ids=["NumPy", "list", "pandas"]
)
def test_masks_that_are_no_tensors(kind: Any) -> None:
    """Masked nodes, where PyG takes the bools for nodes 0 and 1."""
    mask = torch.arange(30) % 5 == 0
    data = peergraph_pyg.share(Data(x=torch.randn(30, 2), edge_index=torch.randint(30, (2, 90))))
    loader = NeighborLoader(data, [2], input_nodes=kind(mask), batch_size=4)
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
    assert seeds.tolist() == mask.nonzero().flatten().tolist()
    with pytest.raises(TypeError, match="a list of both"):
        NeighborLoader(data, [2], input_nodes=[3, True], batch_size=4)
    with pytest.raises(TypeError, match=r"edge_index\[:, mask\]"):
        LinkNeighborLoader(data, [2], edge_label_index=kind(torch.ones(90) > 0), batch_size=4)


def test_masks_of_other_nodes_and_links_without_pairs() -> None:
    """PyG takes the first nodes for the masked ones, and two rows of ids for pairs."""
    graph = Data(x=torch.randn(30, 2), edge_index=torch.randint(30, (2, 90)))
    typed, edge_type = HeteroData(), ("author", "writes", "paper")
    typed["paper"].x, typed["author"].x = torch.randn(30, 2), torch.randn(7, 2)
    typed[edge_type].edge_index = torch.randint(7, (2, 90))
    data, types = peergraph_pyg.share(graph), peergraph_pyg.share(typed)
    for mask in (torch.ones(7) > 0, torch.ones(31) < 0, torch.ones(30, 1) > 0):
        with pytest.raises(ValueError, match="one element for each of 30 nodes"):
            NeighborLoader(data, [2], input_nodes=mask)
        with pytest.raises(ValueError, match="each of 30 nodes of type 'paper'"):
            NeighborLoader(types, [2], input_nodes=("paper", mask))
        for call in (
            lambda mask: data.subgraph(mask),
            lambda mask: types.subgraph({"paper": mask, "author": torch.arange(3)}),
            lambda mask: loader.ShaDowKHopSampler(data, 2, 3, node_idx=mask),
            lambda mask: loader.NeighborSampler(data.edge_index, [2], node_idx=mask),
        ):
            with pytest.raises(ValueError, match="one element for each of 30 nodes"):
                call(mask)
    for ids in (np.array([0.5, 3.0]), np.array(["0"]), np.array([True, None])):
        with pytest.raises(TypeError, match="must be ids or a mask, got an array of"):
            NeighborLoader(data, [2], input_nodes=ids)
    for links in (torch.ones(90, 2).long(), torch.ones(3, 90).long(), np.ones(90, np.int64)):
        with pytest.raises(ValueError, match=r"must be \[2, links\]"):
            LinkNeighborLoader(data, [2], edge_label_index=links)
        with pytest.raises(ValueError, match=r"must be \[2, links\]"):
            LinkNeighborLoader(types, [2], edge_label_index=(edge_type, links))
