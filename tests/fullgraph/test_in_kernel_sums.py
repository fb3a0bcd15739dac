"""Sums whose kernel reads rows of other ranks: their parameters, what is published, fallbacks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product

import pytest
import torch

from peergraph.aggregate import AttentionSum
from peergraph.fullgraph import FullGraph, PartitionedTensor
from peergraph.fullgraph.exchange.halo import HaloPlan
from peergraph.fullgraph.exchange.mapped_rows import MappedRows, RowAddresses
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.interleaving import (
    APART,
    MOST_PROBES,
    Interleaving,
    grid,
    partitions,
    tune,
)
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import TOLERANCE, features, random_graph
from tests.named_case import named_cases

from .partitioned import leaf, partition, shuffled_layout

# Times of settings: with one best place, flat, best at a corner, and with a ridge.
TIMES: dict[str, Callable[[Interleaving], float]] = {
    "a bowl": lambda s: 1 + abs(s.partition - 8) / 9 + abs(s.distance - 2) / 9,
    "flat": lambda s: 1.0,
    "a corner": lambda s: 1 / s.partition + 1 / s.distance + 1 / s.warps_per_block,
    "the other corner": lambda s: 1.0 * s.partition * s.distance * s.warps_per_block,
    "a link that is full": lambda s: 10 + (s.partition < 4) + (s.warps_per_block > 8) / 4,
    "warps in flight": lambda s: 1 + abs(s.partition * s.warps_per_block - 64) / 64,
}


@named_cases(("name", "row_bytes"), product(TIMES, [16, 64, 256, 512, 2048]))
def test_tuning(name: str, row_bytes: int) -> None:
    measured: list[Interleaving] = []

    def time_of(setting: Interleaving) -> float:
        return 1e6 if setting == APART else TIMES[name](setting)

    def measure(setting: Interleaving) -> float:
        measured.append(setting)
        return time_of(setting)

    choice, times = tune(measure, row_bytes)
    assert list(times) == measured
    assert len(set(measured)) == len(measured) <= MOST_PROBES
    assert times[choice] == min(times.values())
    if name in ("a bowl", "flat", "a link that is full"):
        best = min(map(time_of, grid(row_bytes)))
        assert times[choice] <= 1.05 * best


def test_settings() -> None:
    assert [partitions(width) for width in (16, 32, 64, 192, 256, 512, 4096)] == [
        (32,), (16, 32), (8, 16, 32), (2, 4, 8, 16), (2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4, 8),
    ]  # fmt: skip
    assert len(grid(512)) == 1 + 4 * 5 * 5
    assert str(APART) == "local edges first"
    assert tune(lambda s: 2.0 if s.distance else 1.0, 64)[0] is APART
    assert str(Interleaving(8, 2, 1)) == "partition 8, distance 2, 1 warp a block"
    assert tune(lambda _: 1.0, 64, most_probes=1) == (APART, {APART: 1.0})


def check_published_rows() -> None:
    group, packed = Group.current(), []
    for edges in (6, 70):
        graph = random_graph(group.device, 60, 40, edges)
        sources, destinations = shuffled_layout(group, 60, 1), shuffled_layout(group, 40)
        plan = partition(graph.edge_index, sources, destinations).plan
        rows = MappedRows(plan)
        distinct = len(torch.unique(plan.send_rows))
        assert rows.num_published in (distinct, plan.num_local)
        packed.append(rows.num_published < plan.num_local)
        check_rows(rows, plan, sources)
    assert any(group.all_gather(packed[0]))
    assert not all(group.all_gather(packed[1]))


def check_rows(rows: MappedRows, plan: HaloPlan, sources: RowLayout) -> None:
    group = Group.current()
    ids = plan.gather(sources.positions)[plan.num_local :]
    for dtype, width in ((torch.float32, 5), (torch.float64, 8), (torch.float32, 24)):
        full = features(60, (width,), group.device, dtype, grad=False)
        x = leaf(full, sources).to_local().detach()
        published = rows.publish(x)
        assert published.columns == rows.padded_columns(x) >= width
        assert published.columns * x.itemsize % 32 == 0
        halo = full[ids]
        assert torch.equal(read(published, dtype)[:, :width], halo)
        group.barrier()
        rows.release()
    rows.close()


def read(published: RowAddresses, dtype: torch.dtype) -> torch.Tensor:
    """The rows at their addresses, on the CPU."""
    size = published.columns * dtype.itemsize
    results = [
        torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=dtype)
        for address in published.addresses.tolist()
    ]
    return torch.stack(results) if results else torch.empty(0, published.columns, dtype=dtype)


def check_reasons() -> list[str]:
    group = Group.current()
    graph = random_graph(group.device, 30, 30, 200)
    nodes = shuffled_layout(group, 30)
    csc = partition(graph.edge_index.long(), nodes, nodes)
    csc.mode = "in_kernel"
    x = leaf(features(30, (4,), group.device, grad=False), nodes).detach()
    e = leaf(features(200, (), group.device, grad=False), csc.edge_layout).detach()
    assert isinstance(x, PartitionedTensor)
    exchanges = [csc.last_exchange]
    for run in (
        lambda: csc.spmm("copy_u", "sum", x),
        lambda: csc.spmm("copy_u", "max", x),
        lambda: csc.spmm("copy_u", "sum", x.half()),
        lambda: csc.spmm("mul", "sum", x, e),
        lambda: csc.spmm("mul", "sum", x, e.clone().requires_grad_()),
        lambda: csc.spmm("add", "sum", x, e),
        lambda: csc.edge_softmax(e),
        lambda: csc.attention(AttentionSum(x.view(30, 2, 2), x[:, :2], x[:, :2])),
    ):
        run()
        exchanges.append(csc.last_exchange)
    assert exchanges[-1] in repr(csc)
    return exchanges


def test_fallbacks_say_why() -> None:
    first, second = run_ranks(check_reasons, 2)
    assert first == second == [
        "no sum has run",
        "in_kernel",
        "all at once: max is no sum",
        "all at once: sums of torch.float16 are kept in float32",
        "in_kernel",
        "all at once: values of edges need gradients",
        "all at once: messages are add",
        "all at once: messages are add",
        "all at once: a function of edges reads them",
    ]  # fmt: skip


def check_built() -> None:
    """On CPU ranks in_kernel is used where it is asked for, by a reference of the kernel."""
    group = Group.current()
    graph = random_graph(group.device, 50, 50, 120)
    arguments = {"_N": 50}, {("_N", "_E", "_N"): graph.edge_index.cpu()}
    usual = next(iter(FullGraph.build(group, *arguments).structures.values()))
    assert usual.mode in ("halo", "blocks")
    structure = next(iter(FullGraph.build(group, *arguments, mode="in_kernel").structures.values()))
    assert structure.mode == structure.mode_for(64) == "in_kernel"
    full = features(50, (8,), group.device, torch.float64, grad=False)
    x = leaf(full, structure.source_layout)
    out = structure.spmm("copy_u", "mean", x)
    torch.testing.assert_close(
        out.full_tensor(),
        usual.spmm("copy_u", "mean", leaf(full, usual.source_layout)).full_tensor(),
        **TOLERANCE[torch.float64],
    )
    assert structure.in_kernel_sums.tuning_of(x.to_local(), None) is None


def test_published_rows() -> None:
    run_ranks(check_published_rows, 3)


def test_asked_for_on_cpus() -> None:
    run_ranks(check_built, 2)


def check_tuned_on_gpus() -> None:
    group = Group.current()
    graph = random_graph(group.device, 3000, 3000, 40_000, nonisolated=1.0)
    built = FullGraph.build(
        group, {"_N": 3000}, {("_N", "_E", "_N"): graph.edge_index}, order="random"
    )
    assert built.plan.limits.modes == ("halo", "blocks", "in_kernel")
    structure = next(iter(built.structures.values()))
    structure.mode, structure.keeps_results = "in_kernel", False
    sums = structure.in_kernel_sums
    for width in (16, 64, 132):
        full = features(3000, (width,), group.device, grad=False)
        x = leaf(full, structure.source_layout)
        own = x.to_local().detach()
        assert sums.tuning_of(own, None) is None
        first = structure.spmm("copy_u", "sum", x).to_local()
        tuning = sums.tuning_of(own, None)
        assert tuning is not None
        setting, times = tuning
        assert 1 <= len(times) <= MOST_PROBES
        assert times[setting] == min(times.values()) > 0
        assert len(set(group.all_gather((setting, tuple(times.items()))))) == 1
        assert structure.last_exchange == f"in_kernel ({setting})"
        again = structure.spmm("copy_u", "sum", x).to_local()
        assert sums.tuning_of(own, None) == tuning
        assert torch.equal(first, again)
        for other in (APART, Interleaving(1, 1, 1), Interleaving(32, 16, 16)):
            sums.interleaving = other
            assert torch.equal(first, structure.spmm("copy_u", "sum", x).to_local())
        sums.interleaving = None


@pytest.mark.gpus(2)
def test_tuned_on_gpus() -> None:
    run_ranks(check_tuned_on_gpus, 2, device="cuda")
