"""A plan of full-graph training as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from peergraph.fullgraph.layout.blocks import imbalance
from peergraph.fullgraph.plan.format_offload import format_offload
from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem
from peergraph.fullgraph.plan.network_bytes import NetworkBytes
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.recorded_model import RecordedModel
from peergraph.fullgraph.plan.sum_cost import SumCost
from peergraph.memory import Topology
from peergraph.printing import format_bytes, table_lines
from peergraph.store import EdgeType

_STAGES = {"blocks": 2}
# Columns of sums for which the mode is shown, of floats.
_SHOWN_WIDTHS, _FLOAT_BYTES = (16, 32, 64, 128, 256, 512), 4


class Plan(Protocol):
    """The properties of a :class:`FullGraphPlan` that its printed text shows."""

    @property
    def facts(self) -> GraphFacts: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def model(self) -> RecordedModel | None: ...
    @property
    def memory_budget(self) -> int | None: ...
    @property
    def mode(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def items(self) -> Sequence[MemoryItem]: ...
    @property
    def sums(self) -> Sequence[SumCost]: ...
    @property
    def buffers(self) -> Mapping[str, Sequence[int]]: ...
    @property
    def modes(self) -> Sequence[str]: ...
    @property
    def decision(self) -> str: ...
    @property
    def offload(self) -> OffloadPlan | None: ...
    @property
    def network(self) -> NetworkBytes | None: ...
    @property
    def world_size(self) -> int: ...
    @property
    def bytes_by_rank(self) -> Sequence[int]: ...
    @property
    def chooses_by_width(self) -> bool: ...
    def mode_for(self, edge_type: EdgeType, row_bytes: int) -> str: ...


def format_plan(plan: Plan) -> str:
    """Returns the lines that ``print(plan)`` shows."""
    if plan.offload is not None:
        lines = format_offload(plan.offload, plan.memory_budget)
        return "\n".join([*_head(plan), f"  {plan.decision}", *lines])
    decided = [f"  {plan.decision}"]
    body = [*decided, *_memory(plan), *_sums(plan), *_mode(plan), *_network(plan)]
    return "\n".join([*_head(plan), *body])


def _head(plan: Plan) -> list[str]:
    facts, ranks = plan.facts, plan.world_size
    edges = [sum(v.num_edges[r] for v in facts.volumes.values()) for r in range(ranks)]
    received = [sum(v.received[r] for v in facts.volumes.values()) for r in range(ranks)]
    lines = [
        f"full graph on {ranks} rank{'s' if ranks > 1 else ''}: {sum(facts.rows):,} nodes, "
        f"{sum(edges):,} edges; links of {plan.topology.name}",
        f"  order of nodes: {facts.order}" + (f" ({facts.reason})" if facts.reason else ""),
    ]
    table: list[tuple[str, ...]] = [("", *(f"rank {r}" for r in range(ranks)), "max / mean")]
    for name, counts in (("nodes", facts.rows), ("edges", edges), ("remote rows", received)):
        table.append((name, *(f"{c:,}" for c in counts), f"{imbalance(counts):.2f}"))
    return lines + table_lines(table, 1)


def _memory(plan: Plan) -> list[str]:
    ranks = range(plan.world_size)
    table: list[tuple[str, ...]] = [("memory", "", *(f"rank {r}" for r in ranks))]
    for item in plan.items:
        if any(item.num_bytes):
            table.append((item.name, item.what, *map(format_bytes, item.num_bytes)))
    stages = f"{_STAGES[plan.mode]} buffers of n/P rows" if plan.mode in _STAGES else ""
    if plan.sums:
        table.append(("exchange", stages, *map(format_bytes, plan.buffers[plan.mode])))
    table.append(("total", "", *map(format_bytes, plan.bytes_by_rank)))
    lines = table_lines(table, 2)
    if plan.memory_budget is not None:
        lines.append(f"  budget of each rank: {format_bytes(plan.memory_budget)}")
    return lines


def _sums(plan: Plan) -> list[str]:
    if plan.model is None:
        return []
    lines = [f"  model: {plan.model.name}"]
    if not plan.sums:
        return lines
    modes = [m for m in plan.sums[0].modes if plan.network is None or m in plan.modes]
    table: list[tuple[str, ...]] = [
        ("sums of an epoch", "bytes of a row", *(f"{mode}: received" for mode in modes))
    ]
    for each in plan.sums:
        received = [format_bytes(each.received(mode)) for mode in modes]
        table.append((str(each.count), str(each.row_bytes), *received))
    totals = [sum(each.received(mode) for each in plan.sums) for mode in modes]
    table.append(("epoch", "", *map(format_bytes, totals)))
    return lines + table_lines(table, 1)


def _mode(plan: Plan) -> list[str]:
    mode = plan.mode if plan.world_size > 1 else "none"
    lines = [f"  exchange: {mode} ({plan.reason})"]
    if plan.chooses_by_width:
        by_mode: dict[str, list[str]] = {}
        for width in _SHOWN_WIDTHS:
            of_types = {plan.mode_for(t, width * _FLOAT_BYTES) for t in plan.facts.volumes}
            by_mode.setdefault(" or ".join(sorted(of_types)), []).append(str(width))
        if list(by_mode) == [plan.mode]:
            return lines
        shown = "; ".join(f"{mode} of {', '.join(widths)}" for mode, widths in by_mode.items())
        lines.append(f"  sums by their columns: {shown}")
    return lines


def _network(plan: Plan) -> list[str]:
    if plan.network is None:
        return []
    return [plan.network.describe("epoch" if plan.sums else "sum of 128 columns")]
