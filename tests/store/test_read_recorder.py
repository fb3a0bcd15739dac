"""Measured reads: as many as were made, from where the plan put the rows."""

from __future__ import annotations

import pickle

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group, Table, Tiers
from peergraph.memory.device.stopwatch import Stopwatch
from peergraph.memory.table.partitions import one_partition_per_gpu
from peergraph.memory.table.read_counter import ReadCounter
from peergraph.sampling import NeighborSampler
from peergraph.store import GraphSource, Store
from peergraph.store.placement.partition_solver import solve
from peergraph.testing import run_ranks
from tests.places import cpu_and_gpus
from tests.store.counted_reads import assert_same, expected_sources, internal, positions
from tests.store.graphs import build, heterogeneous_source, homogeneous_source

RING = machine("dgx1-ring4")
FANOUTS = [4, 3]


def _counts(plan: str, device: str) -> None:
    group = Group.current(device=device)
    for make in (lambda: homogeneous_source(300, 2000), lambda: heterogeneous_source(10)):
        torch.manual_seed(0)
        source: GraphSource = make()
        links = {"topology": RING, "memory_budget": 15000} if plan == "solver" else {}
        maker = Store.build if plan == "solver" else build
        local_source = source if group.rank == 0 else None
        with maker(local_source, plan=plan, group=group, **links) as store:  # type: ignore[operator]
            _check_counts(store, group.rank)
            group.barrier()


def _check_counts(store: Store, rank: int) -> None:
    sampler = NeighborSampler(store, FANOUTS)
    node_type = store.node_types[-1]
    count = store.num_nodes(node_type)
    draws = torch.Generator().manual_seed(rank)
    batches = [torch.randint(count, (20,), generator=draws) for _ in range(3 + rank)]
    leaves = [sampler.sample({node_type: ids}, i) for i, ids in enumerate(batches)]
    table = store.node_table("x", node_type)
    with store.measure() as measured:
        for i, ids in enumerate(batches):
            sample = sampler.sample({node_type: ids}, i)
            assert_same(sample, leaves[i])
            table.gather(sample.nodes[node_type])
            table.gather(torch.empty(0, dtype=torch.int64))
    report = measured.result()
    # Nothing counts any more.
    table.gather(torch.arange(3))
    sampler.sample({node_type: batches[0]}, 0)
    assert measured.result() == report
    assert report.batches == (3 + rank,)
    rows = torch.cat([internal(store, node_type, s.nodes[node_type].cpu()) for s in leaves])
    item = report.item("node table", f"{node_type}.x")
    assert item.reads == (tuple(expected_sources(store, rows, table.tiers, rank)),)
    assert item.read_bytes[0] == tuple(table.row_bytes * n for n in item.reads[0])
    for edge_type in store.edge_types:
        _check_structure(store, edge_type, leaves, report, rank)


def _check_structure(store, edge_type, samples, report, rank) -> None:  # type: ignore[no-untyped-def]
    name = "-".join(edge_type)
    if store.num_edges(edge_type) == 0:
        with pytest.raises(KeyError, match="no reads of structure"):
            report.item("structure", name)
        return
    structure = store.csc(edge_type)
    moved = torch.zeros(len(report.items[0].reads[0]), dtype=torch.int64)
    lists = torch.zeros_like(moved)
    edges = []
    for sample in samples:
        edges.append(sample.edge_ids[edge_type].cpu())
        for hop in range(len(FANOUTS)):
            block = sample.block(hop, edge_type)
            users = sample.nodes[edge_type[2]].cpu()[block.first_target :][: block.num_targets]
            rows = internal(store, edge_type[2], users)
            drawn = block.indptr.diff().tolist()
            for row, count in zip(rows, drawn, strict=True):
                one = torch.tensor(expected_sources(store, row, structure.tiers, rank))
                lists += one
                moved += one * 32 * (2 + count)
    item = report.item("structure", name)
    assert item.reads == (tuple(lists.tolist()),)
    assert item.read_bytes == (tuple(moved.tolist()),)
    if structure.edge_ids is not None:
        read = positions(store, edge_type, torch.cat(edges))
        item = report.item("edge ids", name)
        expected = expected_sources(store, read, structure.edge_ids.tiers, rank)
        assert item.reads == (tuple(expected),)


@pytest.mark.parametrize("plan", ["replicated", "host", "mixed"])
def test_counts_of_one_rank(plan: str, device: torch.device) -> None:
    _counts(plan, device.type)


@cpu_and_gpus(4)
@pytest.mark.parametrize("plan", ["mixed", "solver"])
def test_counts_of_ranks(device_type: str, plan: str) -> None:
    run_ranks(_counts, 4, plan, device_type, device=device_type)


def _all_ranks() -> str:
    group = Group.current(device="cpu")
    source = homogeneous_source(300, 2000)
    local_source = source if group.rank == 0 else None
    with Store.build(
        local_source, plan="solver", topology=RING, memory_budget=15000, group=group
    ) as store:
        with store.measure() as measured:
            if group.rank:
                store.node_table("x").gather(torch.arange(10 * group.rank))
                store.node_table("y").gather(torch.arange(5))
                store.node_table("y").gather(torch.arange(5))
        everyone = measured.of_all_ranks(group)
        assert everyone.ranks == (0, 1, 2, 3)
        assert everyone.batches == (0, 2, 2, 2)
        x = everyone.item("node table", "_N.x")
        assert [sum(counts) for counts in x.reads] == [0, 10, 20, 30]
        assert sum(x.hits(4)) == pytest.approx(1)
        links = everyone.link_bytes()
        assert sum(links[3]) == pytest.approx((30 * 28 + 10 * 8) / 2)
        for rank, row in enumerate(links):
            for other, moved in enumerate(row[:-1]):
                # Masked links carry nothing.
                assert not moved or RING.bulk.bandwidth[rank][other] > 0
        assert everyone.seconds_per_batch() > 0
        assert pickle.loads(pickle.dumps(everyone)) == everyone
        group.barrier()
    return str(everyone) if group.rank == 0 else str(measured)


def test_all_ranks_beside_the_prediction() -> None:
    texts = run_ranks(_all_ranks, 4)
    for text in texts:
        assert "compared with the plan's prediction" in text
        assert text.count("predicted") >= 3  # of two items, and of links
    assert "rank 0, 1, 2, 3" in texts[0]
    assert "B from" in texts[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_other_samplers_count_lists(weighted: bool, device: torch.device) -> None:
    source = homogeneous_source()
    source.edge_tables[("_N", "_E", "_N")]["w"].abs_()
    with build(source, "mixed", device=device) as store:
        options = {"weights": "w"} if weighted else {"subgraph": "induced"}
        sampler = NeighborSampler(store, FANOUTS, **options)  # type: ignore[arg-type]
        expected = sampler.sample(torch.arange(9), 1)
        with store.measure() as measured:
            assert_same(sampler.sample(torch.arange(9), 1), expected)
        lists = sum(measured.result().item("structure", "_N-_E-_N").reads[0])
        blocks = [expected.block(hop) for hop in range(expected.num_hops)]
        assert lists == sum(block.num_targets for block in blocks)


def test_one_at_a_time_and_errors() -> None:
    with build(homogeneous_source(), "mixed", device="cpu") as store:
        with store.measure():
            with (
                pytest.raises(RuntimeError, match="is being measured already"),
                store.measure(),
            ):
                pass
            copy = pickle.loads(pickle.dumps(store))
            assert copy.measuring is None
            assert copy.node_table("x").counter is None
        assert store.measuring is None
        with pytest.raises(KeyError), store.measure() as measured:
            store.node_table("nothing")
        assert measured.result().items == ()
        assert "measured over 0" in str(measured)


def test_ids_out_of_range_do_not_count(device: torch.device) -> None:
    tiers = Tiers(2, 2, 2)
    counter = ReadCounter(tiers, one_partition_per_gpu(1), 0, device)
    ids = torch.tensor([[0, 1, 2], [5, 6, -1]], device=device)
    counter.add(ids, torch.full_like(ids, 3))
    counter.add(ids[:, :0])
    reads, units = counter.totals()
    assert reads[:3] == [2, 1, 1]
    assert units[:3] == [6, 3, 3]
    assert sum(reads) == 4


def test_copies_are_read_where_they_are_held() -> None:
    partitions = solve(machine("dgx1"))
    for rank in range(8):
        counter = ReadCounter(Tiers(0, 80, 0), partitions, rank, torch.device("cpu"))
        counter.add(torch.arange(80))
        reads, _ = counter.totals()
        assert reads[1:9] == [10 * n for n in partitions.access_counts()[rank]]


def test_stopwatch(device: torch.device) -> None:
    watch = Stopwatch(device)
    assert watch.seconds() == 0
    for _ in range(3):
        with watch.running():
            torch.ones(1000, device=device).sum()
    assert 0 < watch.seconds() < 60


def test_tables_alone_count(device: torch.device) -> None:
    group = Group.current(device=device)
    table = Table.create((10, 2), torch.float32, Tiers(4, 3, 3), group)
    table.load(torch.zeros(10, 2))
    counter = table.count_reads()
    table.gather(torch.tensor([0, 9, 9, 4], dtype=torch.int32))
    assert counter.totals()[0][:3] == [1, 1, 2]
    assert counter.calls == 1
    table.counter = None
    table.gather(torch.arange(3))
    assert counter.calls == 1
    table.close()


def test_a_thread_samples_after_the_measurement_ended() -> None:
    """A loader's thread may have asked for the recorder before the measurement ended."""
    group = Group.current(device="cpu")
    with build(homogeneous_source(30, 200), "replicated", group=group) as store:
        edge_type = store.edge_types[0]
        with store.measure() as measured:
            pass
        result = measured.result()
        measured.add_lists(edge_type, torch.arange(3), torch.ones(3, dtype=torch.int64))
        measured.add_sample()
        assert measured.result() == result
