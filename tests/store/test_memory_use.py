"""What a store says that it takes, budgets that are kept, and memory that is not there."""

from __future__ import annotations

import gc

import pytest
import torch
from benchmarks.placing.machines import machine

from peergraph.memory import Group, Table
from peergraph.memory.region import free_memory
from peergraph.memory.region.free_memory import GPU_GRANULE, granted_bytes
from peergraph.sampling import NeighborSampler
from peergraph.store import EdgeSource, GraphSource, Store, TieredCsc
from peergraph.store.placement.allocation import (
    Allocation,
    check_room,
    fullest_rank,
    planned_allocations,
)
from peergraph.store.placement.items import graph_items, id_items
from peergraph.store.placement.partition_solver import solve
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.places import cpu_and_gpus
from tests.store.graphs import PLANS, build, heterogeneous_source, homogeneous_source, random_coo

RING = machine("dgx1-ring4")


def by_tensors(store: Store) -> int:
    """Bytes of the graph, each row counted once and without layout."""
    size = 0
    for node_type in store.node_types:
        for name in store.node_table_names(node_type):
            size += store.node_table(name, node_type).num_bytes
        if (ids := store.id_map(node_type)).to_user is not None:
            size += 2 * ids.to_user.num_bytes
    for edge_type in store.edge_types:
        for name in store.edge_table_names(edge_type):
            size += store.edge_table(name, edge_type).num_bytes
        structure = store.csc(edge_type)
        size += 16 * structure.num_destinations + 4 * structure.num_edges
        if structure.edge_ids is not None:
            size += structure.edge_ids.num_bytes
    return size


@pytest.mark.parametrize("plan", PLANS)
def test_one_rank(plan: str, device: torch.device) -> None:
    for make in (homogeneous_source, heterogeneous_source):
        with named_case(make.__name__), build(make(), plan, device=device) as store:
            use = store.memory()
            tiers = [use.tier(name) for name in ("replicated", "sharded", "host")]
            # Arrays of structures begin at multiples of 256 bytes, in three parts.
            beside = 3 * 3 * 257 * len(store.edge_types)
            assert by_tensors(store) <= sum(tiers) <= by_tensors(store) + beside
            if plan == "host":
                assert tiers[:2] == [0, 0]
                assert use.device_bytes() == 0
            assert use.device_bytes() % (GPU_GRANULE if device.type == "cuda" else 4096) == 0
            assert use.device_bytes() >= use.tier("replicated") + use.tier("sharded")
            assert "rank 0" in str(use)
            for name in store.node_table_names(store.node_types[0]):
                assert f"{store.node_types[0]}.{name}" in str(use)
            with pytest.raises(
                ValueError, match="tier must be 'replicated', 'sharded', 'host' or 'disk'"
            ):
                use.tier("disc")


def test_scratch_of_samplers() -> None:
    with Store.build(homogeneous_source(), device="cpu") as store:
        assert store.memory().scratch_bytes() == 0
        sampler = NeighborSampler(store, [2])
        sampler.sample(torch.arange(3), 0)
        sampler.sample(torch.arange(3), 1)
        assert store.memory().scratch == (("node maps of a NeighborSampler", 4 * 60),)
        assert "240 B for node maps" in str(store.memory())
        del sampler
        gc.collect()
        assert store.memory().scratch == ()


def links_or_plan(source: GraphSource | None, plan: str, **options: object) -> Store:
    """Builds; `graphs.build` keeps a budget from plans other than "auto"."""
    make = Store.build if plan == "solver" else build
    return make(source, plan=plan, **options)  # type: ignore[operator]


def _allocates_what_was_planned(plan: str, device: str) -> None:
    group = Group.current(device=device)
    for source in (homogeneous_source(300, 2000), heterogeneous_source(10)):
        local_source = source if group.rank == 0 else None
        links = {"topology": RING, "memory_budget": 15000} if plan == "solver" else {}
        with links_or_plan(local_source, plan, group=group, **links) as store:
            use = store.memory()
            for rank in range(group.world_size):
                if plan == "solver":
                    assert use.tier("replicated", rank) + use.tier("sharded", rank) <= 15000
                regions = [size for e in use.allocations for size in e.of_rank(rank)]
                assert use.device_bytes(rank) == granted_bytes(regions, device)
            sizes = group.all_gather([use.tier("replicated"), use.tier("sharded")])
            assert sizes == [
                [use.tier("replicated", rank), use.tier("sharded", rank)]
                for rank in range(group.world_size)
            ]
            planned = fullest_rank(list(use.allocations), 1)[1]
            copies = store.plan.copies
            assert planned <= store.plan.bytes_per_rank() + copies * 6 * 256 * len(use.allocations)


@cpu_and_gpus(4)
@pytest.mark.parametrize("plan", ["sharded", "mixed", "solver"])
def test_ranks_allocate_what_was_planned(device_type: str, plan: str) -> None:
    run_ranks(_allocates_what_was_planned, 4, plan, device_type, device=device_type)


def test_extents_are_those_of_the_store() -> None:
    source = homogeneous_source()
    degrees = torch.bincount(source.edges[("_N", "_E", "_N")].coo[1], minlength=60)
    with build(source, "mixed", device="cpu") as store:
        order = store.id_map().to_user
        assert order is not None
        hot = {("_N", "_E", "_N"): degrees[order.read().long()]}
        items = [
            *id_items(store.contents.schema),
            *graph_items(store.contents.schema, hot, dict.fromkeys(hot, 1)),
        ]
        planned = planned_allocations(items, store.plan)
        use = store.memory()
        for tier in ("replicated", "sharded"):
            assert sum(getattr(e, tier)[0] for e in planned) == use.tier(tier)
        assert sum(e.host for e in planned) == use.tier("host")


def test_shards_of_uneven_lists_keep_the_budget() -> None:
    """One long list: the shard that it is dealt to has more bytes than an even share."""
    run_ranks(_uneven_shards, 2)


def _uneven_shards() -> None:
    group = Group.current(device="cpu")
    coo = torch.stack([torch.arange(400) % 20, torch.full((400,), 7)])
    source = GraphSource.homogeneous(20, EdgeSource(coo=coo))
    local_source = source if group.rank == 0 else None
    for budget in (1000, 1500, 2000, 2500):
        with Store.build(
            local_source, memory_budget=budget, topology=machine("full2"), group=group
        ) as store:
            use = store.memory()
            for rank in range(2):
                assert use.tier("replicated", rank) + use.tier("sharded", rank) <= budget
            assert torch.equal(store.edge_index(), coo)


def test_budgets_that_cannot_be_kept() -> None:
    source = homogeneous_source()
    with pytest.raises(ValueError, match=r"plan 'replicated' needs \d+ bytes of rank 0, "):
        Store.build(source, plan="replicated", memory_budget=4000, device="cpu")
    with Store.build(source, plan="sharded", device="cpu") as store:
        plan = store.plan
    with pytest.raises(ValueError, match="memory_budget: plan 'sharded' needs"):
        Store.build(source, plan=plan, memory_budget=4000, device="cpu")
    Store.build(source, plan="host", memory_budget=0, device="cpu").close()


@pytest.mark.gpus(1)
def test_id_maps_beyond_the_budget() -> None:
    with pytest.raises(ValueError, match="renumbering nodes needs 480 bytes of rank 0"):
        Store.build(homogeneous_source(), memory_budget=479, device="cuda")


@pytest.fixture
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(Table, "create", refuse)
    monkeypatch.setattr(TieredCsc, "create", refuse)


@pytest.mark.usefixtures("no_allocation")
def test_host_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "8000")
    message = r"needs \d+ bytes .* of the host's memory, 8000 bytes are available"
    with pytest.raises(MemoryError, match=message):
        Store.build(homogeneous_source(), plan="host", device="cpu")


@pytest.mark.gpus(1)
@pytest.mark.usefixtures("no_allocation")
def test_a_gpu_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "peergraph.store.placement.allocation.free_gpu_memory", lambda device: 4 << 20
    )
    with pytest.raises(MemoryError, match=r"rank 0 needs \d+ bytes .* of cuda:0, 4194304 bytes"):
        Store.build(homogeneous_source(), plan="replicated", device="cuda")


class OnGpus:
    """What a check of room asks of a group."""

    device = torch.device("cuda", 0)
    rank = 0

    def __init__(self, devices: list[str]) -> None:
        self.devices = devices

    def all_gather(self, value: tuple[str, str, int, int]) -> list[tuple[str, str, int, int]]:
        return [(device, device, *value[2:]) for device in self.devices]


def test_gpu_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "peergraph.store.placement.allocation.free_gpu_memory", lambda device: 10 << 20
    )
    monkeypatch.setattr("peergraph.store.placement.allocation.identity", str)
    ranks = OnGpus(["cuda:0", "cuda:1"])
    fits = Allocation("node table", "x", (4 << 20, 4 << 20), (6 << 20, 5 << 20), 0)
    check_room([fits], ranks)  # type: ignore[arg-type]
    beyond = Allocation("node table", "x", (4 << 20, 4 << 20), (6 << 20, (6 << 20) + 1), 0)
    message = r"rank 1 needs 12582912 bytes \(12.0 MiB\) of cuda:1, 10485760 .* are free"
    with pytest.raises(MemoryError, match=message):
        check_room([beyond], ranks)  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match=r"rank 1 needs 20971520 bytes .* of cuda:0"):
        check_room([fits], OnGpus(["cuda:0", "cuda:0"]))  # type: ignore[arg-type]


@pytest.mark.alone
@pytest.mark.gpus(1)
def test_the_driver_agrees() -> None:
    """Every tier on a GPU, some 300 MB: what it says is what the driver misses."""
    _compare_with_driver("cuda")


@pytest.mark.alone
@pytest.mark.gpus(2)
def test_the_driver_agrees_on_two_gpus() -> None:
    run_ranks(_compare_with_driver, 2, "cuda", device="cuda")


def _compare_with_driver(device: str) -> None:
    group = Group.current(device=device)
    nodes = 1_000_000
    source = GraphSource.homogeneous(
        nodes,
        EdgeSource(coo=random_coo(nodes, nodes, 4_000_000)),
        {"x": torch.randn(nodes, 64), "y": torch.arange(nodes)},
    )
    local_source = source if group.rank == 0 else None
    for plan in ("replicated", "sharded", "mixed", "auto"):
        # The first build makes what stays: contexts, and kernels that are loaded when first used.
        build(local_source, plan, group=group).close()
        before = free_memory.free_gpu_memory(group.device)
        group.barrier()
        store = build(local_source, plan, group=group)
        group.synchronize()
        group.barrier()
        num_bytes = before - free_memory.free_gpu_memory(group.device)
        group.barrier()
        said = store.memory().device_bytes()
        assert num_bytes == pytest.approx(said, rel=0.05), (plan, num_bytes, said)
        store.close()


@pytest.mark.gpus(1)
def test_budgets_in_the_drivers_blocks() -> None:
    nodes = 200_000
    source = GraphSource.homogeneous(
        nodes,
        EdgeSource(coo=random_coo(nodes, nodes, 800_000)),
        {"x": torch.randn(nodes, 256), "y": torch.arange(nodes)},
    )
    for budget in (80 << 20, 111 << 20, 150_000_001):
        with Store.build(source, memory_budget=budget, device="cuda") as store:
            assert store.memory().device_bytes() <= budget
            assert store.memory().tier("host") > 0


def test_copies_of_shards_count() -> None:
    partitions = solve(machine("dgx1"))
    parts = {"replicated": [0] * 8, "sharded": [10 * (r + 1) for r in range(8)], "host": [5]}
    allocation = Allocation.of_parts(("node table", "x"), parts, partitions)
    assert sum(allocation.sharded) == 2 * sum(parts["sharded"])
    assert allocation.host == 5


def test_host_memory_within_control_groups(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PEERGRAPH_HOST_MEMORY", raising=False)
    files = {
        "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 90 kB\n",
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/memory.max": "81920\n",
        "sys/fs/cgroup/job/memory.current": "51200\n",
        "sys/fs/cgroup/job/memory.stat": "anon 40000\nactive_file 1000\ninactive_file 200\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory.free_host_memory(tmp_path) == 81920 - (51200 - 1200)
    (tmp_path / "sys/fs/cgroup/job/memory.max").write_text("max\n")
    assert free_memory.free_host_memory(tmp_path) == 90 * 1024
    (tmp_path / "sys/fs/cgroup/job/memory.max").write_text("100\n")
    assert free_memory.free_host_memory(tmp_path) == 0
