"""What a partitioned structure exchanges, and what it keeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import layers
from peergraph.fullgraph.exchange.block_stages import BlockStages
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.aggregate.graphs import features, random_graph
from tests.named_case import named_case

from .partitioned import leaf, partition, shuffled_layout

CPU = torch.device("cpu")
NODES, IN, NARROW, WIDE = 30, 6, 2, 11


class Record:
    """What travelled: columns of the rows of each exchange, and reductions over ranks."""

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.reductions = 0


@contextmanager
def recorded(structure: PartitionedCsc) -> Iterator[Record]:
    """Records the exchanges of features, those with at least one column."""
    transport, record = structure.plan.transport, Record()
    start, all_reduce = transport.start, transport.all_reduce

    def start_recorded(outputs: Any, inputs: Any, *slots: Any) -> Any:
        columns = {t.shape[1] for t in (*outputs.values(), *inputs.values()) if t.dim() == 2}
        record.columns += sorted(columns)
        return start(outputs, inputs, *slots)

    def reduce_recorded(*args: Any, **kwargs: Any) -> Tensor:
        record.reductions += 1
        return all_reduce(*args, **kwargs)

    transport.start, transport.all_reduce = start_recorded, reduce_recorded  # type: ignore
    try:
        yield record
    finally:
        del transport.start, transport.all_reduce


def structure_of(group: Group, mode: str = "halo", seed: int = 0) -> PartitionedCsc:
    nodes = shuffled_layout(group, NODES, 3)
    graph = random_graph(CPU, NODES, NODES, 500, seed=seed)
    structure = partition(graph.edge_index, nodes, nodes)
    structure.mode = mode
    return structure


def rows_of(structure: PartitionedCsc, columns: int = IN, grad: bool = False) -> Any:
    x = features(NODES, (columns,), CPU, torch.float64, grad=grad)
    return leaf(x, structure.source_layout)


def weight_of(out: int) -> Tensor:
    return features(out, (IN,), CPU, torch.float64)


def gcn(structure: PartitionedCsc, x: Tensor, weight: Tensor) -> Tensor:
    return layers.gcn(structure, x, weight=weight)


def check_constant_features() -> None:
    group = Group.current("cpu")
    for mode, name, out, layer in (
        ("halo", "sage", NARROW, lambda s, x, w: layers.sage(s, x, w, self_weight=w)),
        ("blocks", "sage", WIDE, lambda s, x, w: layers.sage(s, x, w, self_weight=w)),
        ("blocks", "projected", NARROW, lambda s, x, w: layers.sage(s, x, w, project_first=True)),
        ("halo", "gcn", WIDE, gcn),
        ("blocks", "gcn", NARROW, gcn),
        ("halo", "loops", NARROW, lambda s, x, w: layers.gcn(s, x, weight=w, add_self_loops=True)),
        ("halo", "rgcn", WIDE, lambda s, x, w: layers.rgcn([s, s], x, [w, 2 * w])),
        ("blocks", "gin", WIDE, lambda s, x, w: layers.gin(s, x, 0.5) @ w.t()),
        ("halo", "sum", NARROW, lambda s, x, w: s.spmm("copy_u", "sum", x) @ w.t()),
    ):
        with named_case(mode, name, out):
            check_epochs(structure_of(group, mode), layer, out, group.world_size - 1)


def check_epochs(structure: PartitionedCsc, layer: Any, out: int, stages: int) -> None:
    x, results = rows_of(structure), []
    structure.out_degrees(), layer(structure, rows_of(structure), weight_of(out))
    for epoch in range(3):
        weight = weight_of(out)
        with recorded(structure) as record:
            result = layer(structure, x, weight)
            (result * result).sum().backward()
        results.append((result.detach().to_local(), weight.grad))
        assert bool(record.columns) == (epoch < 2 and stages > 0), record.columns
    for sums, grad in results:
        torch.testing.assert_close(sums, results[0][0])
        torch.testing.assert_close(grad, results[0][1])
    assert structure._constants.num_kept >= 1
    x.mul_(2)
    weight = weight_of(out)
    changed = layer(structure, x, weight).to_local()
    torch.testing.assert_close(
        changed, layer(structure, rows_of(structure).mul_(2), weight).to_local()
    )
    assert torch.equal(changed, results[0][0]) == (changed.numel() == 0)
    del x
    gc.collect()
    assert structure._constants.num_kept == 0


@pytest.mark.parametrize("ranks", [1, 3])
def test_sums_of_constant_features_are_made_twice_then_kept(ranks: int) -> None:
    run_ranks(check_constant_features, ranks)


def check_what_is_not_kept() -> None:
    structure = structure_of(Group.current("cpu"))
    weight, constants = weight_of(WIDE), structure._constants
    learned = rows_of(structure, grad=True)
    for _ in range(3):
        with torch.no_grad():
            layers.sage(structure, rows_of(structure) * 2, weight)  # As dropout makes them.
        layers.sage(structure, learned, weight)
        assert constants.num_kept == 0
    x = rows_of(structure)
    with torch.inference_mode():
        for _ in range(3):
            layers.sage(structure, x, weight)
    layers.sage(structure, x, weight).sum().backward()  # A result of inference mode would raise.
    assert constants.num_kept == 1
    first = structure.spmm("copy_u", "sum", x)
    expected = first.to_local().clone()
    first.mul_(0)
    second = structure.spmm("copy_u", "sum", x)
    assert torch.equal(second.to_local(), expected)
    structure.keeps_results = False
    before = constants.num_kept
    other = x.clone()
    for _ in range(3):
        layers.sage(structure, other, weight)
    assert constants.num_kept == before


def test_results_of_other_features_are_not_kept() -> None:
    run_ranks(check_what_is_not_kept, 2)


def check_columns() -> None:
    group = Group.current("cpu")
    stages = group.world_size - 1
    for mode in ("halo", "blocks"):
        structure = structure_of(group, mode)
        structure.out_degrees()
        relation = structure_of(group, mode, seed=1)
        layers.rgcn([structure, relation], rows_of(structure), [weight_of(WIDE)] * 2)
        for name, out, grad, layer, columns in (
            ("sage", NARROW, True, layers.sage, [NARROW] * 2 * stages),
            ("sage", WIDE, True, layers.sage, [IN] * 2 * stages),
            ("sage of features", NARROW, False, layers.sage, [NARROW] * 2 * stages),
            ("sage of features", WIDE, False, layers.sage, [IN] * stages),
            ("sage of features", IN - 1, False, layers.sage, [IN] * stages),
            ("gcn", NARROW, True, gcn, [NARROW] * 2 * stages),
            ("gcn", WIDE, False, gcn, [IN] * stages),
            (
                "rgcn",
                WIDE,
                True,
                lambda s, x, w, other=relation: layers.rgcn([s, other], x, [w, w], self_weight=w),
                [IN] * 2,
            ),
            ("rgcn", NARROW, True, lambda s, x, w: layers.rgcn([s, s], x, [w, w]),
             [NARROW] * 4 * stages),
        ):  # fmt: skip
            with named_case(mode, name, out, grad):
                x, weight = rows_of(structure, grad=grad), weight_of(out)
                with recorded(structure) as record:
                    result = layer(structure, x, weight)
                    out_grad = torch.ones_like(result)
                    result.backward(out_grad)
                assert record.columns == columns
                assert weight.grad is not None
                assert (x.grad is not None) == grad
        with named_case(mode, "parameters of one layer"):
            x, weight = rows_of(structure), weight_of(WIDE)
            bias, own = features(WIDE, (), CPU, torch.float64), weight_of(WIDE)
            result = layers.sage(structure, x, weight, self_weight=own, bias=bias)
            with recorded(structure) as record:
                result.backward(torch.ones_like(result))
            assert (record.columns, record.reductions) == ([], 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_narrower_side_is_exchanged_once_each_way(ranks: int) -> None:
    run_ranks(check_columns, ranks)


def check_buffers() -> None:
    group = Group.current("cpu")
    for mode in ("halo", "blocks"):
        structure = structure_of(group, mode)
        stages = BlockStages(structure.plan, mode)
        x = torch.ones(structure.plan.num_local, 3)
        addresses = {rows.data_ptr() for rank, rows in stages.gather(x) if rank != group.rank}
        assert len(addresses) <= 2
        counts = structure.source_layout.counts
        most = max(counts) if mode == "blocks" else max(structure.plan.halo_counts)
        assert stages.max_rows <= most


def test_stages_go_through_two_buffers() -> None:
    run_ranks(check_buffers, 4)
