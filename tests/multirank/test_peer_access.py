"""GPUs that do not reach each other: a store has the same rows, samples and gradients, and no rank
maps the memory of a rank out of its reach.

The pairs are refused where the driver is asked, so ranks without GPUs run the same code.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from peergraph.fullgraph import FullGraph
from peergraph.fullgraph.exchange.copy_transport import CopyTransport
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.memory import (
    Group,
    SharedRegion,
    Table,
    Tiers,
    Topology,
    cached_topology,
    measure_topology,
)
from peergraph.memory.region import peer_access
from peergraph.memory.region.parts import CudaHandle, Part
from peergraph.memory.region.peer_access import PeerAccess, refused_by_user
from peergraph.sampling import NeighborSampler, Sample
from peergraph.store import EDGE, NODE, Store
from peergraph.store.placement.options import PlacementOptions
from peergraph.testing import run_ranks
from tests.fullgraph.test_copy_transport import check_exchanges
from tests.fullgraph.test_full_graph import run_cases
from tests.multirank.test_embedding import _every_plan_and_optimizer, _saves
from tests.multirank.test_sampling import assert_same_sample, same_everywhere
from tests.store.counted_reads import expected_sources
from tests.store.graphs import homogeneous_source
from tests.store.same_graph import assert_same_graph

PATTERNS = {
    "none": "all",
    "islands": "0-2,0-3,1-2,1-3",
    "ring": "0-2,1-3",
    "one_apart": "0-1",
    "alone": "0-3,1-3,2-3",
}
PLACES = [
    pytest.param("all", 2, "cpu", id="none-2-cpu"),
    *(pytest.param(text, 4, "cpu", id=f"{name}-4-cpu") for name, text in PATTERNS.items()),
    pytest.param("all", 2, "cuda", id="none-2-gpus", marks=pytest.mark.gpus(2)),
    *(
        pytest.param(text, 4, "cuda", id=f"{name}-4-gpus", marks=pytest.mark.gpus(4))
        for name, text in PATTERNS.items()
    ),
]
FEW = [place for place in PLACES if str(place.id).split("-")[0] in ("none", "islands")]


@pytest.fixture(autouse=True)
def _refused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes no links either where none may be used."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "refused" in callspec.params:
        monkeypatch.setenv("PEERGRAPH_REFUSED_PAIRS", callspec.params["refused"])
        monkeypatch.setenv("NCCL_P2P_DISABLE", "1")


def _run(function: Callable[..., None], ranks: int, device: str, *arguments: object) -> None:
    """Runs a function on ranks; a failure's last line is the test's."""
    try:
        run_ranks(function, ranks, *arguments, device=device, timeout_s=200)
    except RuntimeError as error:
        text = str(error).strip()
        pytest.fail(f"{text.splitlines()[-1]}\n{text}", pytrace=False)


def _count_mapped_gpus() -> dict[tuple[int, int], int]:
    """From now on counts parts of other processes that are mapped for this rank's GPU, by process
    and by the owner's number of its GPU.
    """
    counts: dict[tuple[int, int], int] = {}
    plain = CudaHandle.open

    def opened(self: CudaHandle, device: torch.device) -> Part:
        if device.index == torch.cuda.current_device():
            key = self.pid, self.device
            counts[key] = counts.get(key, 0) + 1
        return plain(self, device)

    CudaHandle.open = opened  # type: ignore[method-assign, assignment]
    return counts


def _assert_out_of_reach(group: Group) -> int:
    """No region of this process maps a refused rank; returns how many parts are left out."""
    access, left_out = PeerAccess.of(group), 0
    assert access.refused == refused_by_user(group.world_size)
    for region in [each for each in gc.get_objects() if type(each) is SharedRegion and each._parts]:
        for rank in region.distant:
            assert rank in access.distant
            assert region._parts[rank] is None
            assert region.reached[rank] is None
            with pytest.raises(RuntimeError, match=f"cannot map the memory of rank {rank}"):
                region.part(rank, torch.uint8, (1,))
            with pytest.raises(RuntimeError, match="peer access"):
                print(region.addresses)
            left_out += 1
    return left_out


def _few_samples(store: Store) -> list[Sample]:
    seeds = torch.arange(0, 300, 7)
    options: list[dict[str, Any]] = [{}, {"weights": "w"}, {"disjoint": True}]
    samplers = [NeighborSampler(store, [4, 3], **each) for each in options]
    return [sampler.sample(seeds, 5) for sampler in samplers]


def _store(device: str, folder: str) -> None:
    group = Group.current(device=device, timeout=100)
    rank, world = group.rank, group.world_size
    mapped = _count_mapped_gpus()
    access = PeerAccess.of(group)
    source = homogeneous_source(300, 2000)
    source.edge_tables["_N", "_E", "_N"]["w"].abs_()  # type: ignore[union-attr]
    values = torch.randn(300, 7, generator=torch.Generator().manual_seed(1))
    with Store.build(source, plan="host", group=Group.current(device="cpu")) as plain:
        expected = _few_samples(plain)
    for plan in ("sharded", "replicated", "solver"):
        options: PlacementOptions = {"plan": plan}
        if plan == "solver":
            options |= {"memory_budget": 15000, "topology": Topology.default(world)}
        with Store.build(source if rank == 0 else None, group=group, **options) as store:
            assert_same_graph(store, source)
            for mine, other in zip(_few_samples(store), expected, strict=True):
                assert_same_sample(mine, other)
            group.barrier()
            # Rows that each rank writes, with and without the numbers of hotness.
            table = store.node_table("x")
            ids = torch.arange(rank, 300, world)
            table.scatter(ids, values[ids])
            group.barrier()
            assert torch.equal(table.read(), values)
            extra = store.add_node_table("extra", torch.arange(300))
            assert torch.equal(extra.read(), torch.arange(300))
            assert bool(_assert_out_of_reach(group)) == bool(access.distant)
            with store.measure() as measured:
                table.gather(torch.arange(300))
            actual = measured.result()
            for other_rank, moved in enumerate(actual.link_bytes()[0][:world]):
                assert access.reaches(other_rank) or moved == 0
            for prediction in store.plan.predictions:
                for reader, row in enumerate(prediction.link_bytes):
                    for other_rank, moved in enumerate(row[:world]):
                        assert access.reaches(other_rank, reader) or moved == 0
            counts = expected_sources(store, torch.arange(300), table.tiers, rank)
            assert actual.item("node table", "_N.x").reads == (tuple(counts),)
            if plan == "sharded":
                store.save(folder)
        if plan == "sharded":
            with Store.load(folder, group=group, **options) as again:
                assert torch.equal(again.node_table("x").read(), values)
                group.barrier()
    pids = group.all_gather(os.getpid())
    if device == "cuda":
        for other_rank in range(world):
            is_mapped = (pids[other_rank]) in {pid for pid, _ in mapped}
            assert other_rank == rank or access.reaches(other_rank) == is_mapped


@pytest.mark.parametrize(("refused", "ranks", "device"), PLACES)
def test_store(refused: str, ranks: int, device: str, tmp_path: Path) -> None:
    _run(_store, ranks, device, device, str(tmp_path / "store"))


@pytest.mark.parametrize(("refused", "ranks", "device"), FEW)
@pytest.mark.parametrize("plan", ["mixed", "replicated"])
def test_samples(refused: str, ranks: int, device: str, plan: str) -> None:
    """Of graphs of several types and with every option, equal to those of host memory."""
    if device == "cuda" and plan == "replicated":
        pytest.skip("takes long, and test_store samples from replicas")
    _run(same_everywhere, ranks, device, plan, device)


def _trained(folder: str) -> None:
    _every_plan_and_optimizer()
    _saves(folder)


@pytest.mark.parametrize(("refused", "ranks", "device"), FEW)
def test_trained_tables(refused: str, ranks: int, device: str, tmp_path: Path) -> None:
    _run(_trained, ranks, device, str(tmp_path / "store"))


def _full_graph() -> None:
    os.environ["PEERGRAPH_TRANSPORT"] = "copy"
    group = Group.current(timeout=100)
    transport = Transport.of(group)
    assert isinstance(transport, CopyTransport)
    check_exchanges(transport)
    tensors = [torch.full((3,), group.rank, device=group.device) for _ in range(group.world_size)]
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    transport.all_to_all(outputs, tensors)
    assert [int(out[0]) for out in outputs] == list(range(group.world_size))
    # There is no memory for copies between ranks.
    assert transport._memory is None
    assert transport.reserve(100) is None
    check_exchanges(transport)
    if group.device.type == "cpu":
        run_cases()
    _check_sums(group)
    assert not _assert_out_of_reach(group)


def _check_sums(group: Group) -> None:
    """Compares sums over a full graph, and their gradients, with those of a plain matrix."""
    random = torch.Generator().manual_seed(3)
    edges = torch.randint(100, (2, 900), generator=random)
    x = torch.randn(100, 5, generator=random, dtype=torch.float64)
    graph = FullGraph.build(group, {NODE: 100}, {EDGE: edges.to(group.device)})
    rows = graph.node_rows(x.to(group.device), NODE).requires_grad_()
    sums = graph.structures[EDGE].spmm("copy_u", "sum", rows)
    sums.pow(2).sum().backward()
    plain = x.clone().requires_grad_()
    expected = torch.zeros_like(x).index_add(0, edges[1], plain[edges[0]])
    expected.pow(2).sum().backward()
    torch.testing.assert_close(sums.detach().full_tensor().cpu(), expected.detach())
    torch.testing.assert_close(rows.grad.full_tensor().cpu(), plain.grad)


@pytest.mark.parametrize(("refused", "ranks", "device"), FEW)
def test_full_graphs(refused: str, ranks: int, device: str) -> None:
    _run(_full_graph, ranks, device)


def _tables(folder: str) -> None:
    os.environ["XDG_CACHE_HOME"] = folder
    group = Group.current(timeout=100)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot map the memory of rank 1"):
        Table.create((8,), torch.int64, Tiers(sharded=8), group)
    with pytest.raises(RuntimeError, match=r"rank 0 cannot map the memory of rank 1"):
        SharedRegion.create(64, group)
    SharedRegion.create(64, group, "cpu").close()
    table = Table.create((8,), torch.int64, Tiers(replicated=4, host=4), group)
    mine = torch.arange(group.rank, 8, 2)
    table.scatter(mine, 100 - 7 * mine)
    group.barrier()
    assert table.read().tolist() == [100 - 7 * row for row in range(8)]
    group.barrier()
    if group.device.type == "cpu":
        with pytest.raises(IndexError, match="= 8 is out of range"):
            table.scatter(torch.tensor([8]), torch.tensor([8]))
    with pytest.raises(RuntimeError, match="cannot map the memory"):
        print(table.write_views)
    assert cached_topology(group) is None
    topology = measure_topology(group)
    assert cached_topology(group) == topology
    for rank, row in enumerate(topology.bulk.bandwidth):
        assert row[rank] > 0
        assert row[1 - rank] == topology.latency[rank][1 - rank] == 0
    assert not topology.is_fully_linked
    # Of another reach, other links.
    group.shared.clear()
    del os.environ["PEERGRAPH_REFUSED_PAIRS"]
    assert cached_topology(group) is None
    group.barrier()


@pytest.mark.parametrize(("refused", "ranks", "device"), [p for p in FEW if p.values[1] == 2])
def test_tables_and_measured_links(refused: str, ranks: int, device: str, tmp_path: Path) -> None:
    _run(_tables, ranks, device, str(tmp_path))


def test_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERGRAPH_REFUSED_PAIRS", raising=False)
    assert refused_by_user(4) == set()
    monkeypatch.setenv("PEERGRAPH_REFUSED_PAIRS", "all")
    assert refused_by_user(4) == set(combinations(range(4), 2))
    monkeypatch.setenv("PEERGRAPH_REFUSED_PAIRS", "3-1,0-2,0-9,1-1")
    assert refused_by_user(4) == {(1, 3), (0, 2)}
    monkeypatch.setenv("PEERGRAPH_REFUSED_PAIRS", "1,2")
    with pytest.raises(ValueError, match="PEERGRAPH_REFUSED_PAIRS must be all, or pairs like"):
        refused_by_user(4)


class _Ranks:
    """A group whose ranks say what they are told."""

    rank, world_size, device = 0, 2, torch.device("cuda", 0)

    def __init__(self, *answers: list[object]) -> None:
        self.answers = list(answers)
        self.shared: dict[object, object] = {}

    def all_gather(self, value: object) -> list[object]:
        return self.answers.pop(0)


def test_slices_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(peer_access, "identity", lambda device: "MIG-a")
    monkeypatch.setattr(peer_access, "numa_node", lambda device: None)
    group: Any = _Ranks([("MIG-a", name), ("MIG-b", name)])
    with pytest.raises(RuntimeError, match=r"rank 0 has a MIG slice .*One rank on a slice"):
        PeerAccess.of(group)
    # Ranks that share a slice reach each other.
    group = _Ranks([("MIG-a", name), ("MIG-a", name)], [False, False], [(set(), None)] * 2)
    assert PeerAccess.of(group).is_full
    group.world_size = 1
    group.shared.clear()
    assert PeerAccess.of(group).is_full


def test_the_driver_is_asked_in_one_place() -> None:
    root = Path(peer_access.__file__).parents[3]
    asking = {"can_device_access_peer": "peer_access.py", "open_ipc": "parts.py"}
    for function, file in asking.items():
        callers = {path.name for path in root.rglob("*.py") if function in path.read_text()}
        assert callers == {file}
