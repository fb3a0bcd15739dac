"""Hotness: the order of rows by degree, by counts, by values, and the errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peergraph.memory import Group
from peergraph.sampling import NeighborSampler, presample
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Hotness, Store
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.store.graphs import heterogeneous_source, homogeneous_source
from tests.store.same_graph import assert_same_graph


def hottest(store: Store, node_type: str = NODE) -> list[int]:
    """User ids in the order of their rows."""
    to_user = store.id_map(node_type).to_user
    assert to_user is not None
    return to_user.read().tolist()


def by_falling(values: np.ndarray) -> list[int]:
    return np.argsort(-values, kind="stable").tolist()


@pytest.mark.parametrize(("name", "end"), [("out_degree", 0), ("in_degree", 1)])
def test_by_degree(name: str, end: int, device: torch.device) -> None:
    source = homogeneous_source()
    coo = source.edges[EDGE].coo
    assert coo is not None
    degrees = np.bincount(coo[end].numpy(), minlength=60)
    with Store.build(source, plan="sharded", hotness=name, device=device) as store:
        assert hottest(store) == by_falling(degrees)
        assert_same_graph(store, source)


def test_in_degree_adds_relations() -> None:
    source = heterogeneous_source()
    degrees = np.zeros(20, np.int64)
    for edge_type, edges in source.edges.items():
        if edge_type[2] == "user":
            assert edges.coo is not None
            degrees += np.bincount(edges.coo[1].numpy(), minlength=20)
    with Store.build(source, plan="sharded", hotness="in_degree", device="cpu") as store:
        assert hottest(store, "user") == by_falling(degrees)


def test_hotness_given_as_values() -> None:
    for dtype in (torch.int32, torch.int64, torch.float32):
        with named_case(dtype):
            source = homogeneous_source()
            values = torch.randperm(60).to(dtype)
            with Store.build(source, plan="sharded", hotness=values, device="cpu") as store:
                assert hottest(store) == by_falling(values.numpy())
                assert_same_graph(store, source)


def test_by_values_of_each_type() -> None:
    source = heterogeneous_source()
    values = {"user": torch.randperm(20), "item": torch.randperm(30)}
    with Store.build(source, plan="sharded", hotness=values, device="cpu") as store:
        assert hottest(store, "item") == by_falling(values["item"].numpy())
        assert_same_graph(store, source)


def test_saved_stores_take_it_too(tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = homogeneous_source()
    with Store.build(source, device="cpu") as store:
        store.save(tmp_path / "s")
    values = torch.randperm(60)
    with Store.load(tmp_path / "s", plan="sharded", hotness=values, device="cpu") as store:
        assert hottest(store) == by_falling(values.numpy())


def expected_counts(
    store: Store, fanouts: list[int], batches: list[torch.Tensor], seeds: list[int]
):  # type: ignore[no-untyped-def]
    """Counts of inputs and of expanded nodes, in plain Python."""
    features, structure, edges = np.zeros(60, np.int64), np.zeros(60, np.int64), 0
    sampler = NeighborSampler(store, fanouts)
    for batch, seed in zip(batches, seeds, strict=True):
        sample = sampler.sample(batch, seed)
        for node in sample.nodes[NODE].tolist():
            features[node] += 1
        # With frontier "new", a hop expands what the hop before it found.
        expanded = sum(sample.num_sampled_nodes[NODE][:-1])
        for node in sample.nodes[NODE][:expanded].tolist():
            structure[node] += 1
        edges += sum(sample.num_sampled_edges[EDGE])
    return features, structure, edges


def test_presample_counts_what_batches_read(device: torch.device) -> None:
    source = homogeneous_source()
    train = torch.arange(0, 60, 3)
    with Store.build(source, plan="replicated", device=device) as store:
        hotness = presample(store, [4, 3], train, 7, epochs=2, seed=5)
        again = presample(store, [4, 3], train, 7, epochs=2, seed=5)
        # All neighbours: what is read does not depend on how batches are drawn, if there is one.
        whole = presample(store, [-1, -1], train, 100, seed=9)
        features, structure, edges = expected_counts(store, [-1, -1], [train], [0])
    assert hotness.batches == 6
    assert torch.equal(hotness.features[NODE], again.features[NODE])
    assert hotness.features[NODE].dtype == torch.int64
    assert int(hotness.features[NODE].max()) <= 6
    # Every training node is an input once an epoch, at least.
    assert bool((hotness.features[NODE][train] >= 2).all())
    assert bool((hotness.structure[EDGE] <= hotness.features[NODE]).all())
    assert whole.batches == 1
    assert whole.features[NODE].tolist() == features.tolist()
    assert whole.structure[EDGE].tolist() == structure.tolist()
    assert whole.edges[EDGE] == edges


def test_presample_puts_read_nodes_first() -> None:
    source = homogeneous_source()
    with Store.build(source, device="cpu") as store:
        counts = presample(store, [2], torch.tensor([30]), 1)
    with Store.build(source, plan="sharded", hotness=counts, device="cpu") as store:
        assert set(hottest(store)[: int((counts.features[NODE] > 0).sum())]) == set(
            counts.features[NODE].nonzero().flatten().tolist()
        )
        assert_same_graph(store, source)


def test_presample_by_node_type() -> None:
    source = heterogeneous_source()
    with Store.build(source, device="cpu") as store:
        seeds = {"user": torch.arange(5), "item": torch.arange(5)}
        counts = presample(store, [2, 2], seeds, 4)
        with pytest.raises(ValueError, match="train_nodes: expected a dict"):
            presample(store, [2], torch.arange(3), 4)
    assert counts.batches == 3
    assert bool((counts.features["user"][:5] > 0).all())
    assert bool((counts.structure["user", "buys", "item"][:5] > 0).all())
    assert counts.edges["user", "knows", "user"] == 0


def test_presample_of_nothing() -> None:
    with Store.build(homogeneous_source(), device="cpu") as store:
        counts = presample(store, [2], torch.empty(0, dtype=torch.int64), 4)
    assert counts.batches == 0
    assert int(counts.features[NODE].sum()) == 0


def _presample_on_two() -> None:
    group = Group.current(device="cpu")
    source = homogeneous_source() if group.rank == 0 else None
    train = torch.arange(group.rank, 60, 2)
    with Store.build(source, group=group) as store:
        counts = presample(store, [-1], train, 10)
        both = group.all_gather(counts.features[NODE])
        assert torch.equal(both[0], both[1])
        assert counts.batches == 6
        assert bool((counts.features[NODE] >= 1).all())
    values = torch.arange(60) if group.rank == 0 else torch.zeros(60)
    with Store.build(source, plan="sharded", hotness=values, group=group) as store:
        assert hottest(store) == list(range(59, -1, -1))
        assert_same_graph(store, homogeneous_source())
    with pytest.raises(ValueError, match="hotness must be the same on all ranks"):
        Store.build(source, hotness=values if group.rank else "in_degree", group=group)
    bad = torch.zeros(60 - group.rank)
    with pytest.raises(ValueError, match=r"shape \(60,\)"):
        Store.build(source, hotness=bad, group=group)


def test_two_ranks() -> None:
    run_ranks(_presample_on_two, 2)


def _build(hotness: object, source: GraphSource | None = None) -> None:
    Store.build(source or homogeneous_source(), plan="sharded", hotness=hotness, device="cpu")  # type: ignore[arg-type]


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"hotness must be values or one of .*'fast'"):
        _build("fast")
    with pytest.raises(TypeError, match="hotness must be a name, a tensor or tensors, got int"):
        _build(3)
    with pytest.raises(ValueError, match=r"shape \(60,\), got torch.float32 of shape \(59,\)"):
        _build(torch.zeros(59))
    with pytest.raises(ValueError, match="finite and not negative"):
        _build(torch.full((60,), float("nan")))
    with pytest.raises(ValueError, match="finite and not negative"):
        _build(torch.arange(60) - 1)
    with pytest.raises(TypeError, match="hotness of '_N' must be a tensor"):
        _build({NODE: [1, 2]})
    with pytest.raises(ValueError, match=r"hotness must be given for \['_N'\], got \['x'\]"):
        _build({"x": torch.zeros(60)})
    with pytest.raises(ValueError, match="hotness must be given by node type"):
        _build(torch.zeros(20), heterogeneous_source())
    with pytest.raises(ValueError, match="hotness must count"):
        _build(Hotness({NODE: torch.zeros(60)}, {}, 1, {}))
    with pytest.raises(ValueError, match=r"hotness of \('_N', '_E', '_N'\) must be real"):
        _build(Hotness({NODE: torch.zeros(60)}, {EDGE: torch.zeros(1)}, 1, {EDGE: 1}))
    # A plan that needs no order still checks it.
    with pytest.raises(ValueError, match="hotness"):
        Store.build(homogeneous_source(), hotness="fast", device="cpu")
    with Store.build(homogeneous_source(), device="cpu") as store:
        with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
            presample(store, [2], torch.arange(3), 0)
        with pytest.raises(ValueError, match="epochs must be at least 1"):
            presample(store, [2], torch.arange(3), 1, epochs=0)
        with pytest.raises(IndexError, match="60"):
            presample(store, [2], torch.tensor([60]), 1)


def test_no_nodes() -> None:
    empty = torch.empty((2, 0), dtype=torch.int64)
    source = GraphSource.homogeneous(0, EdgeSource(coo=empty))
    with Store.build(source, plan="sharded", hotness=torch.zeros(0), device="cpu") as store:
        assert store.num_nodes() == 0
    assert Hotness({}, {}, 0, {}).batches == 0


NO_NODES = [
    ([1, 2], TypeError, "train_nodes: expected a tensor or a dict of tensors, got list"),
    (torch.tensor(3), ValueError, r"train_nodes: expected one dimension, got shape \(\)"),
    (torch.rand(3), TypeError, "train_nodes: expected an int32 or int64 tensor"),
]


def test_presample_of_what_are_no_nodes() -> None:
    for train_nodes, error, message in NO_NODES:
        with named_case(message):
            edges = EdgeSource(coo=torch.tensor([[0, 1], [1, 0]]))
            source = GraphSource.homogeneous(2, edges)
            with Store.build(source, device="cpu") as store, pytest.raises(error, match=message):
                presample(store, [1], train_nodes, 2)
