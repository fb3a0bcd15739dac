"""A plan of full-graph training as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from peergraph.fullgraph.layout.blocks import imbalance
from peergraph.fullgraph.plan.format_offload import format_offload
from peergraph.fullgraph.plan.layer_cost import LayerCost
from peergraph.fullgraph.plan.memory_items import SPARE_BUFFERS, GraphFacts, MemoryItem
from peergraph.fullgraph.plan.network_bytes import NetworkBytes
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.resident_plan import ASSUMED_WIDTH
from peergraph.memory import Topology
from peergraph.store import EdgeType
from peergraph.store.placement.plan import format_bytes
from peergraph.store.placement.prediction import columns

_STAGES = {"blocks": 2}
# Columns of sums for which the mode is shown.
_SHOWN_WIDTHS = (16, 32, 64, 128, 256, 512)


class Plan(Protocol):
    """The properties of a :class:`FullGraphPlan` that its printed text shows."""

    @property
    def facts(self) -> GraphFacts: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def widths(self) -> Sequence[int] | None: ...
    @property
    def element_bytes(self) -> int: ...
    @property
    def memory_budget(self) -> int | None: ...
    @property
    def mode(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def items(self) -> Sequence[MemoryItem]: ...
    @property
    def layers(self) -> Sequence[LayerCost]: ...
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
    body = [*decided, *_memory(plan), *_layers(plan), *_mode(plan), *_network(plan)]
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
    return lines + columns(table, 1)


def _memory(plan: Plan) -> list[str]:
    ranks = range(plan.world_size)
    table: list[tuple[str, ...]] = [("memory", "", *(f"rank {r}" for r in ranks))]
    for item in plan.items:
        if any(item.num_bytes):
            table.append((item.name, item.what, *map(format_bytes, item.num_bytes)))
    stages = f"{_STAGES[plan.mode]} buffers of n/P rows" if plan.mode in _STAGES else ""
    if plan.layers:
        table.append(("exchange", stages, *map(format_bytes, plan.buffers[plan.mode])))
    table.append(("total", "", *map(format_bytes, plan.bytes_by_rank)))
    lines = columns(table, 2)
    if plan.memory_budget is not None:
        lines.append(f"  budget of each rank: {format_bytes(plan.memory_budget)}")
    if plan.layers:
        count = len(plan.layers) + SPARE_BUFFERS + _STAGES.get(plan.mode, 0)
        lines.append(f"  a GCN of {len(plan.layers)} layers: {count} buffers of n/P rows")
    return lines


def _layers(plan: Plan) -> list[str]:
    if plan.widths is None:
        return []
    modes = [m for m in plan.layers[0].modes if plan.network is None or m in plan.modes]
    table: list[tuple[str, ...]] = [
        ("layer", "columns", "sums", *(f"{mode}: received" for mode in modes))
    ]
    for number, layer in enumerate(plan.layers):
        widths = f"{plan.widths[number]} -> {plan.widths[number + 1]}"
        sums = "kept" if layer.sums == 0 else str(layer.sums)
        received = [format_bytes(layer.received(mode)) for mode in modes]
        table.append((widths, str(layer.width), sums, *received))
    totals = [sum(layer.received(mode) for layer in plan.layers) for mode in modes]
    table.append(("epoch", "", "", *map(format_bytes, totals)))
    lines = columns(table, 1)
    if any(layer.sums == 0 for layer in plan.layers):
        lines.append("  kept: the sum of the input is made once, before the first epoch")
    return lines


def _mode(plan: Plan) -> list[str]:
    mode = plan.mode if plan.world_size > 1 else "none"
    lines = [f"  exchange: {mode} ({plan.reason})"]
    if plan.chooses_by_width:
        by_mode: dict[str, list[str]] = {}
        for width in _SHOWN_WIDTHS:
            of_types = {plan.mode_for(t, width * plan.element_bytes) for t in plan.facts.volumes}
            by_mode.setdefault(" or ".join(sorted(of_types)), []).append(str(width))
        if list(by_mode) == [plan.mode]:
            return lines
        shown = "; ".join(f"{mode} of {', '.join(widths)}" for mode, widths in by_mode.items())
        lines.append(f"  sums by their columns: {shown}")
    return lines


def _network(plan: Plan) -> list[str]:
    if plan.network is None:
        return []
    return [plan.network.describe("epoch" if plan.layers else f"sum of {ASSUMED_WIDTH} columns")]
