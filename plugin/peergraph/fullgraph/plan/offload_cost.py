"""Where the rows of offloaded training are placed, and the memory of a chunk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_spread import Spread
from peergraph.fullgraph.plan.schedule.schedule import (
    FEATURES,
    SEQUENTIAL,
    SOURCE,
    Schedule,
    StoredRows,
)

DEVICE, HOST, FILE = TIERS = ("device", "host", "file")
USER = "user"  # the tensor or table that the user gave, which is not copied
_WORKING_EDGES = 4  # values of an edge that the work on a chunk holds for each that is computed
_LEAST_PART = 1 / 32  # of the rows, for which rows are partly on the device
_LIST_BYTES = 4  # of a row that a chunk needs: where it is, or where it was
# Numbers of a row that one rank sends to another: in the windows of both, where gradients go back.
_EXCHANGE_LISTS = 4
_STAGES = 2  # buffers of each transfer: one is filled while the other is used
# Copies of gradients that a chunk adds to rows of sources: those of the chunk, two buffers of sums,
# and two of rows that are on their way to the store.
_ADDED_COPIES = 5


@dataclass(frozen=True)
class ChunkSize:
    """What the work on the largest chunk of a rank reads.

    Args:
        rows: destinations.
        edges: in-edges of these.
        sources: rows of sources on the device at a time, those that it passes on included.
    """

    rows: int
    edges: int
    sources: int


def expected_chunks(facts: GraphFacts, spread: Spread) -> list[ChunkSize]:
    """Returns the chunks of each rank, of which all are expected to be as large."""
    ranks, chunks = facts.world_size, spread.chunks
    sources = math.ceil(spread.alpha * sum(facts.rows) / ranks / chunks)
    return [
        ChunkSize(
            -(-rows // chunks),
            -(-sum(volume.num_edges[rank] for volume in facts.volumes.values()) // chunks),
            # Other ranks may need any of this rank's rows at the same time.
            min(rows, sources) + sources * (ranks - 1) // ranks,
        )
        for rank, rows in enumerate(facts.rows)
    ]


def chunk_bytes(
    schedule: Schedule,
    chunk: ChunkSize,
    element_bytes: int,
    edge_columns: int,
    stages_sources: bool,
) -> int:
    """Returns the bytes of a rank's device for the buffers and the work of its largest chunk.

    Args:
        edge_columns: elements that the model computes for each edge.
        stages_sources: whether rows of sources come from the host or from other ranks, chunk by
            chunk; else they are read where they are, except by passes that add gradients to them.
    """
    held = 0
    for step in schedule.passes:
        moved = sum(schedule.columns(name) for name in (*step.reads, *step.writes))
        own = math.ceil(step.share * chunk.rows) * (step.working + _STAGES * moved)
        read, added = (
            sum(schedule.columns(name) for name in names) for names in (step.sources, step.adds)
        )
        if stages_sources:
            of_sources = _STAGES * read + _ADDED_COPIES * added
        else:
            of_sources = read + added if added else 0
        sources = chunk.sources
        if step.share < 1:
            sources = min(sources, math.ceil(step.share * chunk.edges))
        held = max(held, own + sources * of_sources)
    return (held + _WORKING_EDGES * chunk.edges * edge_columns) * element_bytes


def row_list_bytes(
    facts: GraphFacts, schedule: Schedule, spread: Spread, stages_own_sources: bool
) -> tuple[int, ...]:
    """Returns the bytes of each rank for the lists of rows that chunks load, keep and send.

    Args:
        stages_own_sources: whether sources of a chunk are copied from the host chunk by chunk.
    """
    adds = any(step.adds for step in schedule.passes)
    listed = 0.0
    for share in {step.share for step in schedule.passes if step.sources or step.adds}:
        # Edges to labelled nodes have lists of their own.
        moves = facts.world_size > 1 or stages_own_sources
        if moves or any(step.adds for step in schedule.passes if step.share == share):
            listed += spread.needed(share) + _EXCHANGE_LISTS * spread.exchanged(share)
    # Gradients of sums are sums over the reversed edges, which have lists, too.
    directions = 1 if adds else 2
    return tuple(math.ceil(_LIST_BYTES * directions * listed * rows) for rows in facts.rows)


@dataclass(frozen=True)
class Placement:
    """Where rows are.

    Args:
        tiers: "device", "host", "file" or "user" by name of the row set. Features that are not on
            the device are read where the user has them.
        parts: by name of row sets that are not on the device as a whole, the share of their rows
            that are there, of rows that are read in order.
        loaded: names of row sets that are not on the device, but are copied there as a whole for a
            pass that reads them in the order of edges, with the number of that pass.
    """

    tiers: dict[str, str]
    loaded: frozenset[tuple[str, int]]
    parts: dict[str, float]

    def outside(self, name: str) -> float:
        """Returns the share of the rows that are not on the device."""
        return 0.0 if self.tiers[name] == DEVICE else 1 - self.parts.get(name, 0.0)

    def has_sources_on_device(self, schedule: Schedule) -> bool:
        """Whether all rows that a pass reads in the order of edges are on the device by then."""
        return all(
            self.tiers[name] == DEVICE or (name, number) in self.loaded
            for number, step in enumerate(schedule.passes)
            for name in (*step.sources, *step.adds)
        )


def place_rows(
    schedule: Schedule, row_bytes: Mapping[str, int], rooms: Sequence[int], widening: int = 1
) -> Placement | None:
    """Returns the tier of each stored row set; None where they do not fit.

    Rows that are read in the order of edges come first: a chunk needs such rows several times.
    Row sets that never exist at the same time share memory.

    Args:
        row_bytes: of all rows of the busiest rank, by name.
        rooms: bytes of the device, the host and files, for one rank. Features take none of the
            host's and of files.
        widening: how many times as large rows are in a copy on the device.
    """
    passes = range(-1, len(schedule.passes))
    used = {tier: dict.fromkeys(passes, 0) for tier in TIERS}
    placed: dict[str, str] = {}
    parts: dict[str, float] = {}

    def urgency(rows: StoredRows) -> tuple[bool, bool, int]:
        in_use = any(
            rows.name in (*p.reads, *p.sources, *p.writes, *p.adds) for p in schedule.passes
        )
        return (not in_use, rows.role != SOURCE, rows.first)

    for rows in sorted(schedule.rows, key=urgency):
        live = range(rows.first, rows.last + 1)
        size = row_bytes[rows.name]
        if rows.role == SEQUENTIAL and rows.name != FEATURES and size:
            left = min(rooms[0] - used[DEVICE][at] for at in live)
            if _LEAST_PART <= left / size < 1:
                parts[rows.name] = left / size
                for at in live:
                    used[DEVICE][at] += left
                size -= left
        for tier, room in zip(TIERS, rooms, strict=True):
            if tier == DEVICE and rows.name in parts:
                continue
            if tier != DEVICE and rows.name == FEATURES:
                placed[rows.name] = USER
                break
            if all(used[tier][at] + size <= room for at in live):
                placed[rows.name] = tier
                for at in live:
                    used[tier][at] += size
                break
        else:
            return None
    loaded = set()
    for at, step in enumerate(schedule.passes):
        for name in step.sources:
            room = rooms[0] - used[DEVICE][at]
            copied = row_bytes[name] * widening
            if placed[name] != DEVICE and copied <= room:
                used[DEVICE][at] += copied
                loaded.add((name, at))
    return Placement(placed, frozenset(loaded), parts)


def tier_bytes(
    schedule: Schedule, row_bytes: Mapping[str, int], placement: Placement
) -> dict[str, int]:
    """Returns the most bytes of stored rows by tier, over all passes."""
    most = dict.fromkeys(TIERS, 0)
    for at in range(-1, len(schedule.passes)):
        held = dict.fromkeys(TIERS, 0)
        for rows in schedule.rows:
            tier = placement.tiers[rows.name]
            if tier != USER and rows.first <= at <= rows.last:
                part = round(row_bytes[rows.name] * placement.parts.get(rows.name, 0.0))
                held[DEVICE] += part
                held[tier] += row_bytes[rows.name] - part
        held[DEVICE] += sum(row_bytes[name] for name, step in placement.loaded if step == at)
        most = {tier: max(most[tier], held[tier]) for tier in TIERS}
    return most
