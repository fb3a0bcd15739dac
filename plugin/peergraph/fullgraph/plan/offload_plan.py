"""The plan of offloaded training: chunks, where rows are placed, bytes over links, time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peergraph.fullgraph.plan.memory_items import GraphFacts, MemoryItem, total_bytes
from peergraph.fullgraph.plan.network_rate import check_network
from peergraph.fullgraph.plan.offload_cost import (
    DEVICE,
    FILE,
    HOST,
    USER,
    Placement,
    place_rows,
    row_list_bytes,
    tier_bytes,
    working_bytes,
)
from peergraph.fullgraph.plan.offload_pass import PassCost, pass_cost
from peergraph.fullgraph.plan.offload_schedule import FEATURES, SOURCE, Schedule, make_schedule
from peergraph.fullgraph.plan.offload_spread import Spread, spread_at
from peergraph.memory import Topology
from peergraph.store.placement.plan import format_bytes

CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of chunks of a rank that a plan chooses from."""
_AS_QUICK, _CHUNK_SHARE = 1.02, 1 / 16
_ASSUMED_HEADS = 4
_LABELLED_ROWS = 4  # the output of labelled nodes, its logarithms of softmax, gradients of both


@dataclass(frozen=True)
class OffloadPlan:
    """How a graph larger than the memory of the GPUs is trained.

    Args:
        num_chunks: chunks of each rank's nodes.
        chunks_reason: why so many.
        widths: of the model, or those that are assumed.
        assumed: whether the widths are assumed.
        heads: of attention; 0: none.
        hidden_bytes: bytes of an element of rows that passes store.
        items: memory of each rank's device, without stored rows.
        schedule: the passes of an epoch.
        row_bytes: of all rows of the busiest rank, by name.
        placement: the tier of each row set.
        spread: rows that chunks need.
        passes: their bytes and times.
        device_room, host_room, file_room: bytes of one rank for stored rows.
        memory_budget: bytes of each rank's device.
        network: bytes a second that each of several machines sends and receives; None: there is
            one machine.
    """

    num_chunks: int
    chunks_reason: str
    widths: tuple[int, ...]
    assumed: bool
    heads: int
    hidden_bytes: int
    items: tuple[MemoryItem, ...]
    schedule: Schedule
    row_bytes: dict[str, int]
    placement: Placement
    spread: Spread
    passes: tuple[PassCost, ...]
    device_room: int
    host_room: int
    file_room: int
    memory_budget: int
    network: float | None = None

    @property
    def seconds(self) -> float:
        """Expected time of an epoch."""
        return sum(p.seconds for p in self.passes)

    @property
    def network_bytes(self) -> int:
        """Bytes that a machine receives from others in an epoch; it sends about as many."""
        return sum(p.network for p in self.passes)

    @property
    def bytes_by_tier(self) -> dict[str, int]:
        """The most bytes of stored rows of one rank on the "device", the "host" and in "file"s."""
        return tier_bytes(self.schedule, self.row_bytes, self.placement)

    @property
    def is_on_device(self) -> bool:
        """Whether all rows are on the devices."""
        return all(tier == DEVICE for tier in self.placement.tiers.values())

    @property
    def source_bytes(self) -> int:
        """The most bytes of rows on one rank's device that are read in the order of edges."""
        schedule, tiers = self.schedule, self.placement.tiers
        sources = [r for r in schedule.rows if r.role == SOURCE and tiers[r.name] == DEVICE]
        held = [0]
        for at in range(len(schedule.passes)):
            live = (r.name for r in sources if r.first <= at <= r.last)
            copied = (name for name, number in self.placement.loaded if number == at)
            held.append(sum(self.row_bytes[name] for name in (*live, *copied)))
        return max(held)

    @property
    def device_bytes(self) -> int:
        """Bytes of the busiest rank's device."""
        ranks = len(self.items[0].num_bytes)
        return max(total_bytes(self.items, ranks)) + self.bytes_by_tier[DEVICE]

    def with_network(
        self, facts: GraphFacts, topology: Topology, element_bytes: int, bandwidth: float
    ) -> OffloadPlan:
        """Returns the same plan for another network; the arguments are those of the plan.

        Raises ValueError for a bandwidth that is not positive.
        """
        rate = check_network(bandwidth)
        passes = tuple(
            pass_cost(
                number, self.schedule, facts, self.row_bytes, self.placement, self.spread, topology,
                element_bytes, rate,
            )
            for number in range(len(self.passes))
        )  # fmt: skip
        return replace(self, passes=passes, network=rate)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "num_chunks": self.num_chunks,
            "reason": self.chunks_reason,
            "widths": list(self.widths),
            "assumed_widths": self.assumed,
            "heads": self.heads,
            "hidden_bytes": self.hidden_bytes,
            "bytes": {item.name: list(item.num_bytes) for item in self.items},
            "rows": {
                name: {"bytes": size, "tier": self.placement.tiers[name]}
                for name, size in self.row_bytes.items()
            },
            "bytes_by_tier": self.bytes_by_tier,
            "alpha": self.spread.alpha,
            "seconds": self.seconds,
            "network": self.network,
            "network_bytes": self.network_bytes,
            "passes": [vars(p) for p in self.passes],
        }


def make_offload_plan(
    facts: GraphFacts,
    topology: Topology,
    *,
    widths: Sequence[int],
    assumed: bool,
    element_bytes: int,
    memory_budget: int,
    host_memory: int,
    file_memory: int = 0,
    num_chunks: int | None = None,
    heads: int = 0,
    hidden_bytes: int | None = None,
    labelled: float | None = None,
    spreads: Sequence[Spread] = (),
    network: float | None = None,
) -> OffloadPlan:
    """Returns the plan of offloaded training: number of chunks, tiers of rows, bytes and times.

    Args:
        facts, topology: as of :class:`FullGraphPlan`.
        widths: columns of the input and of each layer's output.
        assumed: whether the widths are assumed because none were given.
        element_bytes: bytes of an element of the layers.
        memory_budget: bytes of each rank's device.
        host_memory: bytes of the host for all ranks together.
        file_memory: bytes of files for all ranks together.
        num_chunks: of each rank; None: the number with the shortest expected epoch.
        heads: of attention; 0: layers that sum.
        hidden_bytes: bytes of an element of rows that passes store; None: `element_bytes`.
        labelled: share of the nodes that the loss is computed of; None: not known, at most all.
        spreads: rows that chunks need, counted for some numbers of chunks; none: as of a random
            order of nodes.
        network: bytes a second of each of several machines; None: see
            :func:`peergraph.fullgraph.plan.network_rate.check_network`.

    Raises:
        ValueError: a number of chunks or a share that is not positive, or not enough memory; the
            message has a table of what is needed and for what.
    """
    if num_chunks is not None and (isinstance(num_chunks, bool) or num_chunks < 1):
        raise ValueError(f"num_chunks must be positive, got {num_chunks}")
    ranks, rate = facts.world_size, check_network(network)
    if labelled is not None and not 0 < labelled <= 1:
        raise ValueError(f"labelled must be a share of the nodes in (0, 1], got {labelled}")
    schedule = make_schedule(widths, heads, 1.0 if labelled is None else labelled)
    stored_bytes = hidden_bytes or element_bytes
    row_bytes = {
        r.name: math.ceil(r.share * max(facts.rows))
        * r.columns
        * (element_bytes if r.name == FEATURES else stored_bytes)
        for r in schedule.rows
    }
    fixed = _device_items(facts, widths[0] * element_bytes)
    if labelled is not None:
        logits = [math.ceil(labelled * rows) * widths[-1] * element_bytes for rows in facts.rows]
        kept = tuple(_LABELLED_ROWS * size for size in logits)
        fixed.append(MemoryItem("labelled rows", "output, loss and gradients", kept))
    host_room, file_room = host_memory // ranks, file_memory // ranks
    found: list[OffloadPlan] = []
    refused = ""
    for count in CHUNK_COUNTS if num_chunks is None else (num_chunks,):
        spread = spread_at(facts, count, spreads)
        # A model that is not known may have attention.
        edge_columns = 2 * (heads or (_ASSUMED_HEADS if assumed else 0))
        # Buffers for sources are needed where a whole row set does not fit on the device, and for
        # rows that are widened.
        for stages in (False, True) if stored_bytes == element_bytes else (True,):
            working = working_bytes(facts, schedule, spread, element_bytes, edge_columns, stages)
            lists = row_list_bytes(facts, spread, stages)
            items = (
                *fixed,
                MemoryItem("row lists", "which rows chunks read", lists),
                MemoryItem("chunk", "rows of a chunk, staging", working),
            )
            device_room = memory_budget - max(total_bytes(items, ranks))
            rooms = (max(0, device_room), max(0, host_room), file_room)
            placement = place_rows(schedule, row_bytes, rooms, element_bytes // stored_bytes)
            if stages or (placement is not None and placement.has_sources_on_device(schedule)):
                break
        if device_room < 0:
            refused = _no_device(items, ranks, memory_budget, count)
            continue
        if placement is None:
            refused = _no_host(schedule, row_bytes, rooms, count)
            continue
        passes = tuple(
            pass_cost(
                number, schedule, facts, row_bytes, placement, spread, topology, element_bytes, rate
            )
            for number in range(len(schedule.passes))
        )
        found.append(
            OffloadPlan(
                count,
                "",
                tuple(widths),
                assumed,
                heads,
                stored_bytes,
                items,
                schedule,
                row_bytes,
                placement,
                spread,
                passes,
                *rooms,
                memory_budget,
                rate if len(facts.machines) > 1 else None,
            )
        )
    if not found:
        raise ValueError(refused)
    least = min(plan.seconds for plan in found)
    quick = [plan for plan in found if plan.seconds <= _AS_QUICK * least]
    # Small chunks leave memory for buffers that the plan does not count.
    small = [p for p in quick if max(p.items[-1].num_bytes) <= _CHUNK_SHARE * memory_budget]
    best = small[0] if small else quick[-1]
    reason = (
        "as asked for"
        if num_chunks is not None
        else f"the shortest expected epoch of {len(found)} numbers that fit"
    )
    return OffloadPlan(**{**vars(best), "chunks_reason": reason})


def _device_items(facts: GraphFacts, feature_bytes: int) -> list[MemoryItem]:
    """What each rank's device holds besides rows of features and layers.

    Args:
        feature_bytes: of a node's features; what else its tables have stays on the device.
    """
    structure, transposes, lists, narrow, edge_rows = ([] for _ in range(5))
    for rank in range(facts.world_size):
        edges = sum(v.num_edges[rank] for v in facts.volumes.values())
        rows = facts.rows[rank]
        structure.append(4 * edges + 8 * (rows + 1))
        transposes.append(4 * edges + 8 * (rows + 1))
        received = sum(v.received[rank] + v.sent[rank] for v in facts.volumes.values())
        lists.append(8 * rows + 8 * received)
        tables = sum(c[rank] * facts.row_bytes.get(t, 0) for t, c in facts.nodes.items())
        narrow.append(max(0, tables - feature_bytes * rows))
        edge_rows.append(
            sum(
                v.num_edges[rank] * facts.edge_row_bytes.get(t, 0) for t, v in facts.volumes.items()
            )
        )
    return [
        MemoryItem("structure", "in-edges of chunks", tuple(structure)),
        MemoryItem("transposes", "for gradients of sources", tuple(transposes)),
        MemoryItem("numbering", "user's ids; rows to exchange", tuple(lists)),
        MemoryItem("edge rows", "tables of edges", tuple(edge_rows)),
        MemoryItem("node rows", "labels, masks", tuple(narrow)),
    ]


def _no_device(items: Sequence[MemoryItem], ranks: int, budget: int, chunks: int) -> str:
    needed = max(total_bytes(items, ranks))
    return (
        f"memory_budget of {format_bytes(budget)} ({budget} bytes) is not enough for offloaded "
        f"training in {chunks} chunks: the busiest of {ranks} rank{'s' if ranks > 1 else ''} needs "
        f"{format_bytes(needed)} ({needed} bytes) on its device before any rows of features:\n"
        + _table((i.name, i.what, max(i.num_bytes)) for i in items)
    )


def _no_host(
    schedule: Schedule,
    row_bytes: dict[str, int],
    rooms: Sequence[int],
    chunks: int,
) -> str:
    everywhere = place_rows(schedule, row_bytes, (rooms[0], 1 << 62, 0))
    assert everywhere is not None
    needed = tier_bytes(schedule, row_bytes, everywhere)
    missing = needed[HOST] - rooms[1] - rooms[2]
    room = {DEVICE: rooms[0], HOST: rooms[1], FILE: rooms[2]}
    rows = [
        (r.name, f"{r.columns} columns", row_bytes[r.name])
        for r in schedule.rows
        if everywhere.tiers[r.name] != USER
    ]
    return (
        f"host memory is not enough for offloaded training in {chunks} chunks: each rank needs "
        f"{format_bytes(needed[HOST])} of the host and has {format_bytes(room[HOST])}, with "
        f"{format_bytes(room[DEVICE])} on its device and {format_bytes(room[FILE])} in files; "
        f"{format_bytes(max(0, missing))} are missing. Rows that exist at different times share "
        "memory:\n" + _table(rows)
    )


def _table(rows: Any) -> str:
    lines = [(name, what, format_bytes(size)) for name, what, size in rows if size]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if lines else []
    return "\n".join(
        "  " + f"{name:<{widths[0]}}  {what:<{widths[1]}}  {size:>{widths[2]}}"
        for name, what, size in lines
    )
