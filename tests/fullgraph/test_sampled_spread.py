"""Rows that chunks need, counted while a graph is partitioned, against sets of all edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph import FullGraph, FullGraphPlan, named_model
from peergraph.fullgraph.layout.duplication import count_duplication, cut_chunks
from peergraph.fullgraph.plan import spread as spreads
from peergraph.memory import Group
from peergraph.store import NODE
from peergraph.testing import run_ranks

NODES, FINEST = 2000, 1024


def local_edges(count: int = 20_000) -> Tensor:
    """Edges between nodes whose ids differ by little, and some of a hub and of distant nodes."""
    generator = torch.Generator().manual_seed(4)
    source = torch.randint(NODES, (count,), generator=generator)
    near = (source + torch.randint(-20, 21, (count,), generator=generator)) % NODES
    far = torch.randint(NODES, (count,), generator=generator)
    source[::50] = 7
    return torch.stack([source, torch.where(torch.arange(count) % 10 == 0, far, near)])


def plan_of(edges: Tensor, num_chunks: int | None = None, budget: int = 2 << 20) -> FullGraphPlan:
    graph = FullGraph.build(
        Group.current("cpu"), NODES, edges, order="original", offload=True,
        model=named_model([64, 64, 8], "gat", 2),
        memory_budget=budget, host_memory=1 << 30, num_chunks=num_chunks, progress=False,
        row_bytes={NODE: 256},
    )  # fmt: skip
    assert isinstance(graph.plan, FullGraphPlan)
    return graph.plan


def check_counts(edges: Tensor, tolerance: float) -> None:
    plan = plan_of(edges, 8, 16 << 20)
    csc = Csc.from_edge_index(edges, NODES, NODES)
    finest = cut_chunks(csc.in_degrees(), plan.facts.nodes[NODE], FINEST)
    assert [spread.chunks for spread in plan.spreads] == [2**i for i in range(1, 11)]
    for spread in plan.spreads:
        cuts = [of_rank[:: FINEST // spread.chunks] for of_rank in finest]
        result = count_duplication(csc.indptr, csc.indices, cuts)
        assert spread.counted
        assert spread.alpha == pytest.approx(result.alpha, rel=tolerance)
        assert spread.batches == pytest.approx(result.loaded / NODES, rel=tolerance)


def _check_on_ranks() -> None:
    for dtype in (torch.int32, torch.int64):
        check_counts(local_edges().to(dtype), 1e-9)
    check_counts(local_edges()[:, :0], 1e-9)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_counts_are_those_of_sets(ranks: int) -> None:
    run_ranks(_check_on_ranks, ranks)


def test_counts_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "_MARK_BYTES", NODES * FINEST // 4)
    check_counts(local_edges(100_000), 0.1)


def test_an_order_with_locality_needs_fewer_rows() -> None:
    shuffled = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))
    near, far = plan_of(local_edges()).offload, plan_of(shuffled[local_edges()]).offload
    assert near is not None
    assert far is not None
    assert near.spread.alpha < far.spread.alpha / 2
    assert near.num_chunks < far.num_chunks


def test_plans_for_other_widths_keep_the_counts() -> None:
    plan = plan_of(local_edges(), 8)
    other = plan.with_model(named_model([64, 32, 8], "gat", 2)).offload
    assert plan.offload is not None
    assert other is not None
    assert other.spread == plan.offload.spread


def test_types_are_counted_together() -> None:
    """Nodes of all types are cut in the same number of chunks."""
    edges = local_edges()
    relation = ("a", "to", "b")
    graph = FullGraph.build(
        Group.current("cpu"), {"a": NODES, "b": NODES}, {relation: edges}, order="original",
        offload=True, memory_budget=64 << 20, host_memory=1 << 30, num_chunks=4, progress=False,
        row_bytes={"a": 256, "b": 256}, model=named_model([64, 8]),
    )  # fmt: skip
    assert isinstance(graph.plan, FullGraphPlan)
    degrees = torch.bincount(edges[1], minlength=NODES)
    chunk = torch.empty(NODES, dtype=torch.int64)
    (cuts,) = cut_chunks(degrees, [NODES], FINEST)
    for number in range(4):
        chunk[cuts[number * FINEST // 4] : cuts[(number + 1) * FINEST // 4]] = number
    (of_sources,) = cut_chunks(torch.zeros_like(degrees), [NODES], FINEST)
    own = torch.empty_like(chunk)
    for number in range(4):
        own[of_sources[number * FINEST // 4] : of_sources[(number + 1) * FINEST // 4]] = number
    pairs = {*zip(edges[0].tolist(), chunk[edges[1]].tolist(), strict=True)}
    expected_rows = len(pairs | {*enumerate(own.tolist())}) + NODES
    spread = next(s for s in graph.plan.spreads if s.chunks == 4)
    assert spread.alpha == pytest.approx(expected_rows / (2 * NODES))
