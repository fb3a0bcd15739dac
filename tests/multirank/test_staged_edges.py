"""Edges and rows that one rank has: all ranks sort and load them, to the bit as one would."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.errors import PeerLostError
from peergraph.memory import Group, SharedRegion
from peergraph.memory.region import staging
from peergraph.memory.table.table import Table
from peergraph.store import EdgeSource, GraphSource, Store
from peergraph.store.csc import staged_lists
from peergraph.store.csc.sort.edge_buckets import EdgeBuckets
from peergraph.store.input import graph_edges, staged_edges
from peergraph.testing import run_ranks
from tests.multirank.lost_ranks import check_named
from tests.named_case import named_case
from tests.places import cpu_and_gpus
from tests.store.graphs import random_coo

LONG_S = 100.0
# All pieces of a small graph's edges, and passes over them.
SMALL_PIECES, SMALL_ROOM = 3 << 10, 1 << 10


def _in_small_pieces() -> None:
    staging._PIECE_BYTES = dict.fromkeys(staging._PIECE_BYTES, SMALL_PIECES)
    staged_lists._LEAST_BYTES = staged_lists._MOST_HOST_BYTES = SMALL_ROOM
    staged_lists.free_gpu_memory = lambda device: SMALL_ROOM


def _reference(coo: Tensor, num_destinations: int) -> tuple[Tensor, Tensor, Tensor]:
    """A stable sort by destination, by NumPy."""
    order = np.argsort(coo[1].numpy(), kind="stable")
    counts = np.bincount(coo[1].numpy(), minlength=num_destinations)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return torch.from_numpy(indptr), coo[0].long()[order], torch.from_numpy(order)


def _cases() -> dict[str, tuple[Tensor, int, int]]:
    """By name: edges, sources and destinations."""
    loops = torch.arange(300) % 50
    unsorted = random_coo(70, 70, 3000)
    by_destination = unsorted[:, torch.argsort(unsorted[1], stable=True)]
    almost = by_destination.clone()
    almost[1, [1400, 1401]] = torch.tensor([69, 0])
    return {
        "unsorted": (unsorted, 70, 70),
        "int32": (unsorted.int(), 70, 70),
        "sorted": (by_destination, 70, 70),
        "unsorted at one place": (almost, 70, 70),
        "bipartite": (random_coo(9, 4000, 2500, 3), 9, 4000),
        "one destination": (random_coo(4000, 1, 2500, 4), 4000, 1),
        "self loops, twice": (torch.stack([loops, loops]), 50, 50),
        "one edge": (torch.tensor([[3], [2]]), 5, 5),
        "no edges": (torch.empty(2, 0, dtype=torch.int64), 5, 5),
        "not contiguous": (torch.stack([unsorted.t(), unsorted.t()], 2)[:, :, 0].t(), 70, 70),
    }


def _by_torch() -> None:
    """Counts and sorts on the CPU as on a GPU."""
    staged_edges.uses_torch = staged_lists.uses_torch = lambda device: True
    graph_edges.uses_torch = lambda device: True


def _check_edges(device: str, small: bool, by_torch: bool = False) -> None:
    if small:
        _in_small_pieces()
    if by_torch:
        _by_torch()
    group = Group.current(device=device)
    holder = group.world_size - 1
    for name, (coo, num_sources, num_destinations) in _cases().items():
        edge_type = ("a", "to", "b")
        nodes = {"a": num_sources, "b": num_destinations}
        source = GraphSource(nodes, {edge_type: EdgeSource(coo=coo)})
        for plan in ("host", "sharded"):
            local_source = source if group.rank == holder else None
            with Store.build(local_source, plan=plan, group=group) as store, named_case(name, plan):
                actual = store.read_csc(edge_type)
                expected = _reference(coo, num_destinations)
                for mine, theirs in zip(actual, expected, strict=True):
                    assert torch.equal(mine.cpu().long(), theirs)
                assert (store.csc(edge_type).edge_ids is None) == torch.equal(
                    expected[2], torch.arange(coo.shape[1])
                )
            group.barrier()


@pytest.mark.parametrize("small", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("by_torch", [False, True], ids=["compiled", "as on GPUs"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_edges_equal_a_stable_sort(world_size: int, by_torch: bool, small: bool) -> None:
    run_ranks(_check_edges, world_size, "cpu", small, by_torch)


@pytest.mark.parametrize("small", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)]
)
def test_edges_equal_a_stable_sort_on_gpus(world_size: int, small: bool) -> None:
    run_ranks(_check_edges, world_size, "cuda", small, device="cuda")


def _check_csc(device: str) -> None:
    _in_small_pieces()
    group = Group.current(device=device)
    coo = random_coo(70, 90, 3000)
    indptr, indices, order = _reference(coo, 90)
    for ids in (None, order, order.int()):
        source = GraphSource(
            {"a": 70, "b": 90},
            {("a", "to", "b"): EdgeSource(csc=(indptr, indices), edge_ids=ids)},
        )
        local_source = source if group.rank == 0 else None
        with Store.build(local_source, plan="sharded", group=group) as store:
            actual = store.read_csc(("a", "to", "b"))
            expected = torch.arange(3000) if ids is None else order
            assert torch.equal(actual.indptr.cpu(), indptr)
            assert torch.equal(actual.indices.cpu().long(), indices)
            assert torch.equal(actual.edge_ids.cpu(), expected)
        group.barrier()


@cpu_and_gpus(2)
def test_a_csc_of_one_rank(device_type: str) -> None:
    run_ranks(_check_csc, 2, device_type, device=device_type)


def _check_rows(device: str) -> None:
    _in_small_pieces()
    group = Group.current(device=device)
    x = torch.randn(501, 6)
    tables = {
        "x": x,
        "columns": x.t().contiguous().t(),  # not contiguous
        "wide": torch.randn(501, 4000).bfloat16(),  # a row is longer than a piece
        "mask": x[:, 0] > 0,
        "nothing": torch.empty(501, 0),
        "conjugate": torch.randn(501, 2, dtype=torch.complex64).conj(),
    }
    edges = EdgeSource(coo=random_coo(501, 501, 100))
    for plan, storage in (("sharded", None), ("host", None), ("sharded", {"x": "int8"})):
        source = GraphSource.homogeneous(501, edges, tables)
        local_source = source if group.rank == 0 else None
        options: dict[str, Any] = {"plan": plan, "storage": storage, "group": group}
        with Store.build(local_source, **options) as store, named_case(plan, storage):
            for name, rows in tables.items():
                result = store.node_table(name).read()
                if storage is None or name != "x":
                    assert torch.equal(result, rows.resolve_conj()), name
            if storage is not None:
                assert (store.node_table("x").read() - x).abs().max() < 0.02
        group.barrier()


def test_rows_of_one_rank() -> None:
    run_ranks(_check_rows, 3, "cpu")


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2, 4)]
)
def test_rows_of_one_rank_on_gpus(world_size: int) -> None:
    run_ranks(_check_rows, world_size, "cuda", device="cuda")


def _refuse(device: str) -> None:
    _in_small_pieces()
    group = Group.current(device=device)
    good = random_coo(70, 70, 3000)
    for row, edge, value in ((0, 2999, 70), (1, 1501, -1), (1, 0, 2**40), (0, 700, -(2**40))):
        coo = good.clone()
        coo[row, edge] = value
        coo[row, 2999] = value  # the first one is named
        coo[1 - row, 1000] = 0
        name = ("source", "destination")[row]
        source = GraphSource.homogeneous(70, EdgeSource(coo=coo))
        message = rf"edge {edge}: {name} id {value} is out of range for 70 nodes"
        with pytest.raises(IndexError, match=message):
            Store.build(source if group.rank == 0 else None, plan="sharded", group=group)
    x = torch.zeros(501, 3)
    x[300, 1] = torch.nan
    source = GraphSource.homogeneous(501, EdgeSource(coo=good[:, :9]), {"x": x})
    local_source = source if group.rank == 0 else None
    with pytest.raises(ValueError, match="row 300 has nan in column 1"):
        Store.build(local_source, plan="sharded", storage={"x": "int8"}, group=group)
    group.barrier()


@cpu_and_gpus(2)
def test_ids_out_of_range_are_named_on_every_rank(device_type: str) -> None:
    run_ranks(_refuse, 2, device_type, device=device_type)


def _change(device: str, by_torch: bool = False) -> None:
    """The holder's edges change between the passes, without a change of the degrees' sum."""
    if by_torch:
        _by_torch()
    group = Group.current(device=device)
    coo = random_coo(70, 70, 3000)
    write, calls = staged_lists._read, []

    def read(*arguments: Any) -> None:
        calls.append(1)
        coo[1, 7] = (coo[1, 7] + 1) % 70
        write(*arguments)

    staged_lists._read = read
    source = GraphSource.homogeneous(70, EdgeSource(coo=coo))
    with pytest.raises(RuntimeError, match="have changed while they were read"):
        Store.build(source if group.rank == 0 else None, plan="sharded", group=group)
    assert calls
    group.barrier()


def test_edges_that_change_meanwhile_are_refused() -> None:
    run_ranks(_change, 2, "cpu")
    run_ranks(_change, 2, "cpu", True)


@pytest.mark.gpus(2)
def test_edges_that_change_meanwhile_are_refused_on_gpus() -> None:
    run_ranks(_change, 2, "cuda", device="cuda")


def _die(device: str, victim: int, stage: str, interrupt: bool) -> tuple[str, float]:
    _in_small_pieces()
    group = Group.current(device=device, timeout=LONG_S)
    calls = 0

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if group.rank == victim and calls == 3:
                if interrupt:
                    raise KeyboardInterrupt
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    if stage == "count":
        staged_edges._Counter.add = dying(staged_edges._Counter.add)  # type: ignore[method-assign]
    elif stage == "sort":
        sorter: Any = EdgeBuckets if device == "cpu" else staged_lists.EdgeRange
        sorter.select = dying(sorter.select)
    else:
        Table.load = dying(Table.load)  # type: ignore[method-assign]
    source = GraphSource.homogeneous(
        501, EdgeSource(coo=random_coo(501, 501, 3000)), {"x": torch.randn(501, 20)}
    )
    start = time.monotonic()
    try:
        Store.build(source if group.rank == 0 else None, plan="sharded", group=group)
    except PeerLostError as error:
        return str(error), time.monotonic() - start
    except KeyboardInterrupt:
        if group.rank != victim:
            raise AssertionError("the interrupt went to another rank") from None
        raise SystemExit(3) from None
    raise AssertionError("no rank was lost")


def _build_in_little_memory() -> None:
    """Leaves 600 MB of the GPU: less than the edges that are sorted take at once."""
    group = Group.current(device="cuda")
    coo = torch.randint(1 << 20, (2, 50_000_000), generator=torch.Generator().manual_seed(2))
    torch.cuda.init()
    free = torch.cuda.mem_get_info(group.device)[0]
    ballast = SharedRegion.create(free - (600 << 20), group)
    source = GraphSource.homogeneous(1 << 20, EdgeSource(coo=coo))
    with Store.build(source, plan="host", group=group) as store:
        ballast.close()
        result = store.read_csc()
        order = torch.sort(coo[1].cuda(), stable=True).indices.cpu()
        assert torch.equal(result.edge_ids.cpu(), order)
        assert torch.equal(result.indices.cpu().long(), coo[0][order])


@pytest.mark.alone
@pytest.mark.gpus(1)
def test_a_gpu_with_little_free_memory() -> None:
    run_ranks(_build_in_little_memory, 1, device="cuda")


STAGES = ["count", "sort", "rows"]


@pytest.mark.parametrize("interrupt", [False, True], ids=["killed", "Ctrl-C"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_that_ends_is_named(stage: str, interrupt: bool) -> None:
    for victim in (0, 1):
        results = run_ranks(_die, 3, "cpu", victim, stage, interrupt, may_die=[victim])
        with named_case(victim):
            check_named(results, victim, LONG_S / 2)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_gpu_that_ends_is_named(stage: str) -> None:
    results = run_ranks(_die, 2, "cuda", 1, stage, False, device="cuda", may_die=[1])
    check_named(results, 1, LONG_S / 2)
