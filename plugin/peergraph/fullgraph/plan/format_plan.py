"""Plans of full-graph training as text."""

from __future__ import annotations

from collections.abc import Sequence

from peergraph.fullgraph.layout.blocks import imbalance
from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem
from peergraph.fullgraph.plan.offload_cost import DEVICE, FILE, HOST, USER
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.fullgraph.plan.resident_plan import ResidentPlan
from peergraph.memory import Topology
from peergraph.printing import format_bytes, table_lines

_TIERS = {DEVICE: "device", HOST: "host", FILE: "files", USER: "given"}
Rows = list[tuple[str, ...]]


def graph_lines(facts: GraphFacts, topology: Topology) -> list[str]:
    """Returns lines of the graph and its partition."""
    ranks, edges = facts.world_size, facts.num_edges
    received = [sum(v.received[r] for v in facts.volumes.values()) for r in range(ranks)]
    lines = [
        f"full graph on {ranks} rank{'s' if ranks > 1 else ''}: {sum(facts.rows):,} nodes, "
        f"{sum(edges):,} edges; links of {topology.name}",
        f"  order of nodes: {facts.order}" + (f" ({facts.reason})" if facts.reason else ""),
    ]
    table: Rows = [("", *_ranks(ranks), "max / mean")]
    for name, counts in (("nodes", facts.rows), ("edges", edges), ("remote rows", received)):
        table.append((name, *(f"{c:,}" for c in counts), f"{imbalance(counts):.2f}"))
    return lines + table_lines(table, 1)


def resident_lines(
    plan: ResidentPlan, mode: str, reason: str, memory_budget: int | None
) -> list[str]:
    """Returns lines of training with all rows on the devices.

    Args:
        plan: the plan.
        mode: of the exchange.
        reason: why that mode.
        memory_budget: bytes of each rank; None: no limit.
    """
    num_bytes: list[tuple[str, str, Sequence[int]]] = []
    if plan.sums:
        stages = "2 buffers of n/P rows" if mode == "blocks" else ""
        num_bytes.append(("exchange", stages, plan.buffers[mode]))
    num_bytes.append(("total", "", plan.bytes_by_rank(mode)))
    lines = _memory("memory", plan.items, num_bytes)
    if memory_budget is not None:
        lines.append(f"  budget of each rank: {format_bytes(memory_budget)}")
    if plan.model is not None:
        lines.append(f"  model: {plan.model.name}")
    network = plan.network
    if plan.sums:
        modes = [m for m in plan.sums[0].modes if network is None or m in plan.usable]
        table: Rows = [("sums of an epoch", "bytes of a row", *(f"{m}: received" for m in modes))]
        for each in plan.sums:
            received = (format_bytes(each.received(m)) for m in modes)
            table.append((str(each.count), str(each.row_bytes), *received))
        totals = (sum(each.received(m) for each in plan.sums) for m in modes)
        table.append(("epoch", "", *map(format_bytes, totals)))
        lines += table_lines(table, 1)
    lines.append(f"  exchange: {mode if plan.facts.world_size > 1 else 'none'} ({reason})")
    if network is not None:
        most = [format_bytes(max(by_machine)) for by_machine in network]
        lines.append(
            f"  network: the busiest of {len(network.received)} machines receives {most[0]} and "
            f"sends {most[1]} each {'epoch' if plan.sums else 'sum of 128 columns'}"
        )
    return lines


def offload_lines(plan: OffloadPlan) -> list[str]:
    """Returns lines of training with rows in host memory."""
    spread, by_tier = plan.spread, plan.bytes_by_tier
    how = "counted" if spread.counted else "at most, as of a random order"
    lines = [
        f"  chunks of a rank: {plan.num_chunks} ({plan.chunks_reason}); rows that all chunks need: "
        f"{spread.alpha:.2f} for each node ({how})",
        f"  the model is not known: {plan.model.name} is assumed; at run time rows are placed by "
        "what is free"
        if plan.model.assumed
        else f"  model: {plan.model.name}",
    ]
    if plan.hidden_bytes is not None:
        lines.append(f"  rows of layers and gradients are stored in {8 * plan.hidden_bytes} bits")
    stored = [by_tier[DEVICE]] * len(plan.items[0].num_bytes)
    lines += _memory(
        "memory of the device", plan.items, [("stored rows", "those on the device", stored)]
    )
    files = f"; {format_bytes(by_tier[FILE])} in files" if by_tier[FILE] else ""
    lines.append(
        f"  busiest rank: {format_bytes(plan.device_bytes)} of a budget of "
        f"{format_bytes(plan.memory_budget)}; {format_bytes(by_tier[HOST])} of "
        f"{format_bytes(plan.host_room)} on the host{files}"
    )
    return [*lines, *_stored_rows(plan), *_passes(plan)]


def _stored_rows(plan: OffloadPlan) -> list[str]:
    loaded = {name for name, _ in plan.placement.loaded}
    table: Rows = [("rows of a rank", "where", "columns", "bytes")]
    for rows in plan.schedule.rows:
        tier = _TIERS[plan.placement.tiers[rows.name]]
        part = plan.placement.parts.get(rows.name)
        if part is not None:
            tier += f", {100 * part:.0f} % on the device"
        if rows.name in loaded:
            tier += ", copied to the device"
        size = format_bytes(plan.row_bytes[rows.name])
        table.append((rows.name, tier, str(rows.columns), size))
    return table_lines(table, 2)


def _passes(plan: OffloadPlan) -> list[str]:
    moved = [(p.from_host, p.to_host, p.from_ranks) for p in plan.passes]
    table: Rows = [("pass", "from the host", "to the host", "from GPUs")]
    for step, num_bytes in zip(plan.passes, moved, strict=True):
        table.append((step.name, *map(format_bytes, num_bytes)))
    table.append(("epoch", *(format_bytes(sum(way)) for way in zip(*moved, strict=True))))
    lines = table_lines(table, 1)
    if plan.network_bytes:
        lines.append(
            f"  network: a machine receives {format_bytes(plan.network_bytes)} each epoch and "
            "sends about as much"
        )
    return lines


def _memory(
    title: str, items: Sequence[MemoryItem], further: Sequence[tuple[str, str, Sequence[int]]]
) -> list[str]:
    """Returns a table of bytes by rank: of the items that have any, then of what follows."""
    shown = [(item.name, item.what, item.num_bytes) for item in items if any(item.num_bytes)]
    table: Rows = [(title, "", *_ranks(len(items[0].num_bytes)))]
    table += [(name, what, *map(format_bytes, counts)) for name, what, counts in (*shown, *further)]
    return table_lines(table, 2)


def _ranks(count: int) -> list[str]:
    return [f"rank {rank}" for rank in range(count)]
