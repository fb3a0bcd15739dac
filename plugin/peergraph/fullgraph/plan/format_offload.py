"""A plan of offloaded training as text."""

from __future__ import annotations

from peergraph.fullgraph.plan.offload_cost import DEVICE, FILE, HOST, USER
from peergraph.fullgraph.plan.offload_plan import OffloadPlan
from peergraph.printing import format_bytes, table_lines

_PLACES = {DEVICE: "device", HOST: "host", FILE: "files", USER: "given"}


def format_offload(plan: OffloadPlan, memory_budget: int | None) -> list[str]:
    """Returns the lines of an offloaded plan, below the decision."""
    return [*_chunks(plan), *_memory(plan, memory_budget), *_rows(plan), *_passes(plan)]


def _chunks(plan: OffloadPlan) -> list[str]:
    spread = plan.spread
    how = "counted" if spread.counted else "at most, as of a random order"
    lines = [
        f"  chunks of a rank: {plan.num_chunks} ({plan.chunks_reason}); rows that all chunks need: "
        f"{spread.alpha:.2f} for each node ({how})"
    ]
    if plan.model.assumed:
        lines.append(
            f"  the model is not known: {plan.model.name} is assumed; at run time rows are placed "
            "by what is free"
        )
    else:
        lines.append(f"  model: {plan.model.name}")
    if plan.hidden_bytes is not None:
        lines.append(f"  rows of layers and gradients are stored in {8 * plan.hidden_bytes} bits")
    return lines


def _memory(plan: OffloadPlan, memory_budget: int | None) -> list[str]:
    ranks = range(len(plan.items[0].num_bytes))
    table: list[tuple[str, ...]] = [("memory of the device", "", *(f"rank {r}" for r in ranks))]
    for item in plan.items:
        if any(item.num_bytes):
            table.append((item.name, item.what, *map(format_bytes, item.num_bytes)))
    held = plan.bytes_by_tier
    table.append(("stored rows", "those on the device", *[format_bytes(held[DEVICE])] * len(ranks)))
    lines = table_lines(table, 2)
    total = f"  busiest rank: {format_bytes(plan.device_bytes)}"
    if memory_budget is not None:
        total += f" of a budget of {format_bytes(memory_budget)}"
    total += f"; {format_bytes(held[HOST])} of {format_bytes(plan.host_room)} on the host"
    if held[FILE]:
        total += f"; {format_bytes(held[FILE])} in files"
    return [*lines, total]


def _rows(plan: OffloadPlan) -> list[str]:
    table: list[tuple[str, ...]] = [("rows of a rank", "where", "columns", "bytes")]
    for rows in plan.schedule.rows:
        size = format_bytes(plan.row_bytes[rows.name])
        place = _PLACES[plan.placement.tiers[rows.name]]
        part = plan.placement.parts.get(rows.name)
        if part is not None:
            place += f", {100 * part:.0f} % on the device"
        if any(name == rows.name for name, _ in plan.placement.loaded):
            place += ", copied to the device"
        table.append((rows.name, place, str(rows.columns), size))
    return table_lines(table, 2)


def _passes(plan: OffloadPlan) -> list[str]:
    head = ("pass", "from the host", "to the host", "from GPUs")
    table: list[tuple[str, ...]] = [head]
    for p in plan.passes:
        moved = map(format_bytes, (p.from_host, p.to_host, p.from_ranks))
        table.append((p.name, *moved))
    totals = [sum(getattr(p, name) for p in plan.passes)
              for name in ("from_host", "to_host", "from_ranks")]  # fmt: skip
    table.append(("epoch", *map(format_bytes, totals)))
    lines = table_lines(table, 1)
    if plan.network_bytes:
        lines.append(
            f"  network: a machine receives {format_bytes(plan.network_bytes)} each epoch and "
            "sends about as much"
        )
    return lines
