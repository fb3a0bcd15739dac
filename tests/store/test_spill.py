"""Stores larger than the host's memory may get: the coldest rows on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from peergraph.memory import Group, Tiers
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, Plan, Store, TieredCsc
from peergraph.store.placement.plan import Item, Placement
from peergraph.store.placement.spill import Spill
from tests.store.graphs import homogeneous_source

NODES, EDGES = 2000, 9000
SOURCE = homogeneous_source(NODES, EDGES)
PAGE = 4096


def build(budget: int | None, spill: Path | None, **options: object) -> Store:
    return Store.build(SOURCE, host_budget=budget, spill=spill, **options)  # type: ignore[arg-type]


def assert_same(store: Store) -> None:
    """The store has what it was built from, whatever lies where."""
    ids = torch.randperm(NODES).to(store.device)
    for name, rows in SOURCE.node_tables["_N"].items():
        assert torch.equal(store.node_table(name).gather(ids).cpu(), rows[ids.cpu()])
    edge_ids = torch.randperm(EDGES).to(store.device)
    weights = SOURCE.edge_tables[EDGE]["w"]
    assert torch.equal(store.edge_table("w").gather(edge_ids).cpu(), weights[edge_ids.cpu()])
    assert torch.equal(store.edge_index(), SOURCE.edges[EDGE].coo)


def host_plan(device: torch.device) -> dict[str, object]:
    """All rows on the host first, on a GPU too."""
    return {"plan": "host", "device": device}


def test_as_much_as_has_to(device: torch.device, tmp_path: Path) -> None:
    with build(1 << 30, tmp_path, **host_plan(device)) as store:
        assert store.plan.bytes_disk() == 0
        assert store.id_map().to_internal is None
        host_bytes = store.memory().host_bytes()
    for less in (1, 3 * PAGE, 20 * PAGE):
        with build(host_bytes - less, tmp_path, **host_plan(device)) as store:
            assert store.memory().host_bytes() <= host_bytes - less
            assert store.memory().tier("disk") == store.plan.bytes_disk() >= less
            # Id maps take room, too, without a GPU on the host.
            assert store.plan.bytes_disk() <= less + 2 * 4 * NODES + 4 * PAGE
            assert_same(store)
    assert list(tmp_path.iterdir()) == []


def test_coldest_rows_of_the_widest_table(device: torch.device, tmp_path: Path) -> None:
    """Renumbered, although without a GPU one tier would have served all."""
    with build(None, None, **host_plan(device)) as store:
        host_bytes = store.memory().host_bytes()
    with build(host_bytes - 2000, tmp_path, **host_plan(device)) as store:
        tiers = store.plan.tiers("node table", "_N.x")
        assert 0 < tiers.disk < NODES
        assert store.plan.tiers("node table", "_N.y").disk == 0
        order = store.id_map().to_internal
        assert order is not None
        out_degree = SOURCE.edges[EDGE].coo[0].bincount(minlength=NODES)  # type: ignore[index]
        internal = order.read().long()
        cold = out_degree[internal >= NODES - tiers.disk]
        assert cold.max() <= out_degree[internal < NODES - tiers.disk].min()
        # The file was written from front to back.
        to_user = store.id_map().to_user
        assert to_user is not None
        assert (to_user.read()[NODES - tiers.disk :].diff() > 0).all()
        assert "on disk" in str(store.plan)
        assert "on disk, once for all" in str(store.memory())
        assert Plan.from_dict(store.plan.to_dict()) == store.plan


@pytest.mark.parametrize("fanouts", [[5, 3], [-1]])
def test_without_a_gpu_all_but_ids_may_go(tmp_path: Path, fanouts: list[int]) -> None:
    with build(10 * PAGE, tmp_path, device="cpu") as store:
        assert store.plan.tiers("structure", "_N-_E-_N").disk > 0
        assert store.plan.tiers("structure", "_N-_E-_N").host > 0
        assert store.plan.tiers("edge ids", "_N-_E-_N").host == 0
        assert_same(store)
        seeds = torch.arange(20)
        actual = NeighborSampler(store, fanouts).sample(seeds, 7)
    with Store.build(SOURCE, device="cpu") as store:
        expected = NeighborSampler(store, fanouts).sample(seeds, 7)
    assert torch.equal(actual.nodes["_N"], expected.nodes["_N"])
    assert torch.equal(actual.row[EDGE], expected.row[EDGE])
    assert actual.edge_ids is not None
    assert expected.edge_ids is not None
    assert torch.equal(actual.edge_ids[EDGE], expected.edge_ids[EDGE])


def test_saved_and_loaded(device: torch.device, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    with build(30 * PAGE, spill, **host_plan(device)) as store:
        assert store.plan.bytes_disk() > 0
        store.save(tmp_path / "store")
    with Store.load(
        tmp_path / "store", spill=spill, host_budget=29 * PAGE, plan="host", device=device
    ) as store:
        assert store.plan.bytes_disk() > 0
        assert_same(store)


def test_plan_by_hand(device: torch.device, tmp_path: Path) -> None:
    with build(None, None, plan="sharded", device=device) as store:
        values = store.plan.to_dict()
    for placement in values["placements"]:
        if placement["kind"] in ("node table", "edge table"):
            quarter = Tiers(**placement["tiers"]).rows // 4
            rest = Tiers(**placement["tiers"]).rows - 3 * quarter
            placement["tiers"] = vars(Tiers(quarter, quarter, quarter, rest))
    by_hand = Plan.from_dict(values)
    with build(None, tmp_path, plan=by_hand, device=device) as store:
        assert store.plan.bytes_disk() > 0
        assert_same(store)
    with pytest.raises(ValueError, match="spill must be a folder for the rows on disk"):
        build(None, None, plan=by_hand, device=device)


def test_structure_stays_in_memory_for_gpus(tmp_path: Path) -> None:
    item = Item("structure", "s", 10, lambda k: 1000 * k)
    plan = Plan("host", 1, None, (Placement.of(item, Tiers(host=10)),))
    gpu = SimpleNamespace(device=torch.device("cuda", 0), all_gather=lambda value: [value])
    with pytest.raises(MemoryError, match="needs 12288 bytes .* of the host's memory"):
        Spill(tmp_path, 4096).apply(plan, [item], True, gpu)  # type: ignore[arg-type]


def test_structure_on_disk_is_refused_for_gpus(tmp_path: Path) -> None:
    gpu = SimpleNamespace(device=torch.device("cuda", 0), all_gather=lambda value: [value])
    degrees, tiers = torch.ones(10, dtype=torch.int64), Tiers(host=4, disk=6)
    with pytest.raises(NotImplementedError, match=r"structure on disk \(.*6.*\): cuda:0 cannot"):
        TieredCsc.create(degrees, 10, tiers, gpu, spill=tmp_path)  # type: ignore[arg-type]


@pytest.mark.gpus(1)
def test_plan_by_hand_with_structure_on_disk(tmp_path: Path) -> None:
    with build(None, None, plan="host", device="cuda") as store:
        values = store.plan.to_dict()
    for placement in values["placements"]:
        if placement["kind"] == "structure":
            placement["tiers"] = vars(Tiers(disk=Tiers(**placement["tiers"]).rows))
    with pytest.raises(NotImplementedError, match="structure on disk"):
        build(None, tmp_path, plan=Plan.from_dict(values), device="cuda")


def raises(error: type[Exception], message: str, *arguments: object, **options: object) -> None:
    with pytest.raises(error, match=message):
        build(*arguments, **options)  # type: ignore[arg-type]


def test_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raises(MemoryError, r"may take 100 bytes; spill= names a folder", 100, None, device="cpu")
    raises(MemoryError, r"memory, and may take 100 bytes$", 100, tmp_path, device="cpu")
    raises(ValueError, "host_budget must not be negative, got -1", -1, tmp_path)
    raises(ValueError, r"spill must be a folder, got '.*nowhere'", None, tmp_path / "nowhere")
    usage: Callable[[object], object] = lambda folder: SimpleNamespace(free=99)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", usage)
    no_room = r"spill: the plan puts \d+ bytes .*on disk, 99 bytes are free"
    raises(OSError, no_room, 30 * PAGE, tmp_path, device="cpu")
    monkeypatch.setenv("PEERGRAPH_HOST_MEMORY", "50000")
    raises(MemoryError, "spill= names a folder", None, None, device="cpu")
    assert list(tmp_path.iterdir()) == []
    assert Group.current(device="cpu").world_size == 1
