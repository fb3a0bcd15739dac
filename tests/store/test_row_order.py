"""Structures with an order of their own: the same samples, and better hits for the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group
from peergraph.sampling import NegativeSampler, NeighborSampler, RandomWalker, presample
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Hotness, Store
from peergraph.testing import run_ranks
from tests.store.counted_reads import assert_same
from tests.store.graphs import heterogeneous_source, homogeneous_source, mixed, random_coo
from tests.store.same_graph import assert_same_graph


def build_mixed(source: GraphSource | None, **options: object) -> Store:
    """All tiers in every item, as `tests.store.graphs.build` does."""
    with Store.build(source, plan="sharded", **options) as store:  # type: ignore[arg-type]
        plan = mixed(store.plan)
    return Store.build(source, plan=plan, **options)  # type: ignore[arg-type]


def _same_samples(device: str) -> None:
    group = Group.current(device=device)
    for make in (lambda: homogeneous_source(300, 2000), lambda: heterogeneous_source(10)):
        torch.manual_seed(0)
        source = make()
        local_source = source if group.rank == 0 else None
        # The reverse of what out-degrees say.
        heat = {t: torch.arange(source.num_nodes[t[2]]).double() for t in source.edges}
        with (
            build_mixed(local_source, group=group) as one,
            build_mixed(local_source, group=group, structure_hotness=heat) as two,
        ):
            for edge_type in one.edge_types:
                assert one.csc(edge_type).order is None
                assert two.csc(edge_type).order is not None
            assert_same_graph(two, source)
            _compare(one, two)
            group.barrier()


def _compare(one: Store, two: Store) -> None:
    node_type = one.node_types[-1]
    seeds = {node_type: torch.randint(one.num_nodes(node_type), (40,))}
    for options in ({}, {"subgraph": "induced"}, {"replace": True}, {"disjoint": True}):
        mine, other = (
            NeighborSampler(store, [4, 3], **options).sample(seeds, 7)  # type: ignore[arg-type]
            for store in (one, two)
        )
        assert_same(mine, other)
    with one.measure() as first, two.measure() as second:
        for store in (one, two):
            NeighborSampler(store, [4, 3]).sample(seeds, 7)
    for edge_type in one.edge_types:
        if one.num_edges(edge_type):
            name = "-".join(edge_type)
            a, b = (m.result().item("structure", name) for m in (first, second))
            assert sum(a.reads[0]) == sum(b.reads[0])
            assert sum(a.read_bytes[0]) == sum(b.read_bytes[0])
    if one.is_homogeneous:
        walks = [RandomWalker(s).walk(seeds[NODE], 5, 3, q=2.0).nodes for s in (one, two)]
        assert torch.equal(*walks)
        pairs = [
            NegativeSampler(s, avoid_edges=True).sample(seeds[NODE], 3).destination
            for s in (one, two)
        ]
        assert torch.equal(*pairs)


def test_same_samples(device: torch.device) -> None:
    _same_samples(device.type)


def test_same_samples_on_ranks() -> None:
    run_ranks(_same_samples, 3, "cpu")


@pytest.mark.gpus(4)
def test_same_samples_on_gpus() -> None:
    run_ranks(_same_samples, 4, "cuda", device="cuda")


def counted() -> tuple[GraphSource, Hotness]:
    """A graph in which few, short lists are read often, and other nodes' features."""
    nodes = 400
    source = GraphSource.homogeneous(
        nodes,
        EdgeSource(coo=random_coo(nodes, nodes, 6000)),
        {"x": torch.randn(nodes, 5)},
    )
    with Store.build(source, device="cpu") as store:
        hotness = presample(store, [3, 2], torch.arange(0, nodes, 3), 20, epochs=3)
    return source, hotness


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7])
def test_predicted_hits_are_no_fewer(ratio: float) -> None:
    source, hotness = counted()
    results = []
    for options in ({}, {"structure_hotness": hotness}):
        with Store.build(
            source,
            hotness=hotness,
            topology=machine("single"),
            memory_budget=200_000,
            graph_ratio=ratio,
            device="cpu",
            **options,  # type: ignore[arg-type]
        ) as store:
            assert_same_graph(store, source)
            (prediction,) = (p for p in store.plan.predictions if p.kind == "structure")
            placement = next(p for p in store.plan.placements if p.kind == "structure")
            results.append((prediction.hits[0], placement.bytes_replicated))
            kinds = {p.kind for p in store.plan.placements}
            assert ("list order" in kinds) == bool(options)
            with store.measure() as measured:
                sampler = NeighborSampler(store, [3, 2])
                for seed in range(20):
                    sampler.sample(torch.randint(400, (20,)), seed)
            hits = measured.result().item("structure", "_N-_E-_N").hits(1)
            results[-1] = (*results[-1], hits[0])
    (shared, bytes_shared, _), (own, bytes_own, measured_hits) = results
    assert bytes_own <= bytes_shared + 4 * 6000
    # Curves are drawn through points.
    assert own >= shared - 0.01
    assert measured_hits > 0


def test_orders_that_nothing_needs_are_not_kept(device: torch.device) -> None:
    source = homogeneous_source()
    with Store.build(source, plan="host", structure_hotness="in_degree", device=device) as store:
        assert store.csc().order is None
        assert store.id_map().to_internal is None
        assert all(p.kind not in ("ids", "list order") for p in store.plan.placements)
    # Tables in one tier need no renumbering where the structure has an order of its own.
    with Store.build(
        source,
        topology=machine("single"),
        memory_budget=100_000,
        graph_ratio=0.5,
        feature_ratio=0.0,
        structure_hotness="in_degree",
        device=device,
    ) as store:
        assert store.id_map().to_internal is None
        order = store.csc().order
        assert order is not None
        assert sorted(order.read().tolist()) == list(range(60))
        assert any(e.kind == "list order" for e in store.memory().allocations)
        assert_same_graph(store, source)
        name = {p.kind: p for p in store.plan.placements}["list order"].name
        assert name == "_N-_E-_N"


def test_lists_lie_by_reads_for_each_byte() -> None:
    source = homogeneous_source()
    coo = source.edges[EDGE].coo
    assert coo is not None
    degrees = torch.bincount(coo[1], minlength=60)
    reads = torch.randint(1, 9, (60,))
    with Store.build(
        source, plan="sharded", structure_hotness={EDGE: reads}, device="cpu"
    ) as store:
        order = store.csc().order
        to_internal = store.id_map().to_internal
        assert order is not None
        assert to_internal is not None
        row_of_user = order.read()[to_internal.read().long()].long()
    density = reads / (16 + 4.0 * degrees)
    by_row = torch.empty(60, dtype=torch.float64)
    by_row[row_of_user] = density.double()
    assert bool((by_row[1:] <= by_row[:-1] + 1e-9).all())


def test_saved_and_loaded(tmp_path: Path) -> None:
    source = homogeneous_source()
    with Store.build(source, plan="sharded", structure_hotness="in_degree", device="cpu") as store:
        store.save(tmp_path / "graph")
    with Store.load(
        tmp_path / "graph", plan="sharded", structure_hotness="out_degree", device="cpu"
    ) as store:
        assert store.csc().order is not None
        assert_same_graph(store, source)


def test_errors() -> None:
    source = homogeneous_source()
    with pytest.raises(ValueError, match="hotness must be values or one of"):
        Store.build(source, structure_hotness="degree", device="cpu")
    with pytest.raises(ValueError, match=r"of shape \(60,\)"):
        Store.build(source, structure_hotness={EDGE: torch.ones(3)}, device="cpu")
    with pytest.raises(ValueError, match="finite and not negative"):
        Store.build(source, structure_hotness={EDGE: -torch.ones(60)}, device="cpu")
    counts = Hotness({NODE: torch.ones(60)}, {}, 1, {})
    with pytest.raises(ValueError, match="structure_hotness must count"):
        Store.build(source, structure_hotness=counts, device="cpu")
    with pytest.raises(TypeError, match="must be a name, a tensor or tensors"):
        Store.build(source, structure_hotness=3, device="cpu")  # type: ignore[arg-type]


def _kinds_differ() -> None:
    group = Group.current(device="cpu")
    heat = "in_degree" if group.rank else {EDGE: torch.ones(60)}
    with pytest.raises(ValueError, match="hotness must be the same on all ranks"):
        Store.build(
            homogeneous_source() if group.rank == 0 else None,
            plan="sharded",
            structure_hotness=heat,
            group=group,
        )


def test_ranks_must_agree() -> None:
    run_ranks(_kinds_differ, 2)
