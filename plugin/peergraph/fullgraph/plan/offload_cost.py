"""Where the rows of offloaded training are placed, and the time of a pass over chunks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_schedule import FEATURES, SOURCE, Schedule, StoredRows
from peergraph.memory import Topology

DEVICE, HOST, FILE = TIERS = ("device", "host", "file")
USER = "user"  # the tensor or table that the user gave, which is not copied
# Of files nothing is measured: one NVMe drive, shared by the ranks.
FILE_RATE = 3e9
# What the host takes for the operations of a chunk, which nothing hides if the chunk is small.
_CHUNK_SECONDS = 2e-3
# Rows of the widest layer that the recomputation of a chunk holds: as of a layer with its product,
# activation and dropout, and the gradients of these. Of values of edges fewer live at a time.
_WORKING_ROWS, _WORKING_EDGES = 10, 4
_LIST_BYTES = 16  # of a row that a chunk needs: in four lists
_STAGES = 2  # buffers of each transfer: one is filled while the other is used


@dataclass(frozen=True)
class PassCost:
    """Bytes and time of one pass over all chunks, on the slowest rank.

    Args:
        name: of the pass.
        from_host, to_host: bytes over the link of the rank to the host.
        from_files, to_files: bytes of files; they cross the host link, too.
        from_ranks: bytes that the rank receives from other ranks.
        seconds: expected.
        bound: the longest part: "host link", "files", "links between GPUs", "memory of the GPU" or
            "launches".
    """

    name: str
    from_host: int
    to_host: int
    from_files: int
    to_files: int
    from_ranks: int
    seconds: float
    bound: str


@dataclass(frozen=True)
class Spread:
    """How many rows the chunks read, in rows of all nodes.

    Args:
        chunks: on each rank.
        alpha: rows that all chunks of all ranks need, each chunk's distinct rows counted
            (HongTu 2.4).
        batches: the same with the union of the chunks that the ranks compute at the same time.
        counted: whether they were counted; else they are expected of a random order, which is the
            most that they can be.
    """

    chunks: int
    alpha: float
    batches: float
    counted: bool


def expected_spread(facts: GraphFacts, chunks: int) -> Spread:
    """Returns what chunks of a random order of nodes would read.

    The counted rows between ranks tell how out-degrees are spread: the mean degree alone would
    give more.
    """
    rows = max(1, sum(facts.rows))
    ranks = facts.world_size
    edges = sum(sum(v.num_edges) for v in facts.volumes.values())
    degree = _effective_degree(facts, edges / rows)

    def alpha(parts: int) -> float:
        return parts * -math.expm1(-degree / parts)

    whole = max(1.0, alpha(ranks * chunks))
    return Spread(chunks, whole, max(1.0, alpha(chunks)), False)


def _effective_degree(facts: GraphFacts, mean: float) -> float:
    """The out-degree with which nodes of equal degree would need as many rows as were counted."""
    ranks = facts.world_size
    total = sum(sum(map(sum, v.rows)) for v in facts.volumes.values())
    share = total / max(1, sum(facts.rows)) / ranks
    if ranks == 1 or not 0 < share < 0.999:
        return mean
    return min(mean, -ranks * math.log1p(-share))


def working_bytes(
    facts: GraphFacts,
    schedule: Schedule,
    spread: Spread,
    element_bytes: int,
    edge_columns: int,
    stages_own_sources: bool,
) -> tuple[int, ...]:
    """Returns the bytes of each rank for the buffers of one chunk.

    Args:
        edge_columns: elements that the model computes for each edge.
        stages_own_sources: whether the sources of a chunk are copied from the host chunk by chunk;
            else only those of other ranks are copied.
    """
    ranks, chunks = facts.world_size, spread.chunks
    moved = max(
        sum(schedule.columns(name) for name in (*p.reads, *p.writes)) for p in schedule.passes
    )
    gathered = max(
        sum(schedule.columns(name) for name in (*p.sources, *p.adds)) for p in schedule.passes
    )
    edges = [sum(v.num_edges[r] for v in facts.volumes.values()) for r in range(ranks)]
    found = []
    for rank, rows in enumerate(facts.rows):
        of_chunk = -(-rows // chunks)
        sources = min(sum(facts.rows), math.ceil(spread.alpha * sum(facts.rows) / ranks / chunks))
        staged = sources if stages_own_sources else sources * (ranks - 1) // ranks
        held = of_chunk * (_STAGES * moved + _WORKING_ROWS * schedule.widest)
        held += _STAGES * staged * gathered
        held += _WORKING_EDGES * -(-edges[rank] // chunks) * edge_columns
        found.append(held * element_bytes)
    return tuple(found)


def row_list_bytes(facts: GraphFacts, spread: Spread, stages_own_sources: bool) -> tuple[int, ...]:
    """Returns the bytes of each rank for the lists of rows that chunks load, keep and send.

    Args:
        stages_own_sources: as of :func:`working_bytes`.
    """
    ranks = facts.world_size
    if not stages_own_sources and ranks == 1:
        return (0,)
    return tuple(math.ceil(_LIST_BYTES * spread.alpha * rows) for rows in facts.rows)


@dataclass(frozen=True)
class Placement:
    """Where rows are.

    Args:
        tiers: "device", "host", "file" or "user" by name of the row set. Features that are not on
            the device are read where the user has them.
        loaded: names of row sets that are not on the device, but are copied there as a whole for a
            pass that reads or adds to them in the order of edges, with the number of that pass.
    """

    tiers: dict[str, str]
    loaded: frozenset[tuple[str, int]]

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

    def urgency(rows: StoredRows) -> tuple[bool, bool, int]:
        in_use = any(
            rows.name in (*p.reads, *p.sources, *p.writes, *p.adds) for p in schedule.passes
        )
        return (not in_use, rows.role != SOURCE, rows.first)

    for rows in sorted(schedule.rows, key=urgency):
        live = range(rows.first, rows.last + 1)
        size = row_bytes[rows.name]
        for tier, room in zip(TIERS, rooms, strict=True):
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
        for name in (*step.sources, *step.adds):
            room = rooms[0] - used[DEVICE][at]
            copied = row_bytes[name] * widening
            if placed[name] != DEVICE and copied <= room:
                used[DEVICE][at] += copied
                loaded.add((name, at))
    return Placement(placed, frozenset(loaded))


def tier_bytes(
    schedule: Schedule, row_bytes: Mapping[str, int], placement: Placement
) -> dict[str, int]:
    """Returns the most bytes of stored rows by tier, over all passes."""
    found = dict.fromkeys(TIERS, 0)
    for at in range(-1, len(schedule.passes)):
        held = dict.fromkeys(TIERS, 0)
        for rows in schedule.rows:
            tier = placement.tiers[rows.name]
            if tier != USER and rows.first <= at <= rows.last:
                held[tier] += row_bytes[rows.name]
        held[DEVICE] += sum(row_bytes[name] for name, step in placement.loaded if step == at)
        found = {tier: max(found[tier], held[tier]) for tier in TIERS}
    return found


def pass_cost(
    number: int,
    schedule: Schedule,
    facts: GraphFacts,
    row_bytes: Mapping[str, int],
    placement: Placement,
    spread: Spread,
    topology: Topology,
    element_bytes: int,
) -> PassCost:
    """Predicts one pass over all chunks, bytes over measured rates.

    Host memory is read and written at once, beside the sums; rows that are copied to the device as
    a whole come before them. Every other row that the chunks of a batch
    need crosses the link of the rank that has it once, and other ranks receive it from there
    (HongTu 5.1).
    """
    ranks, step, placed = facts.world_size, schedule.passes[number], placement.tiers
    loaded = 0
    moved = {(tier, way): 0 for tier in (*TIERS, USER) for way in ("in", "out")}
    exchanged = 0
    for name in step.reads:
        moved[placed[name], "in"] += row_bytes[name]
    for name in step.writes:
        moved[placed[name], "out"] += row_bytes[name]
    for name in (*step.sources, *step.adds):
        exchanged += round(row_bytes[name] * spread.alpha * (ranks - 1) / ranks)
        if placed[name] == DEVICE:
            continue
        times = 1.0 if (name, number) in placement.loaded else spread.batches
        size = round(row_bytes[name] * times)
        if (name, number) not in placement.loaded:
            moved[placed[name], "in"] += size
        elif name not in step.adds:
            loaded += size
        if name in step.adds:
            moved[placed[name], "out"] += size
    edges = max(sum(v.num_edges[r] for v in facts.volumes.values()) for r in range(ranks))
    host = min(topology.bulk.host)
    files_in, files_out = moved[FILE, "in"], moved[FILE, "out"]
    link_in = moved[HOST, "in"] + moved[USER, "in"] + files_in
    link_out = moved[HOST, "out"] + files_out
    row = max(1, step.edge_columns * element_bytes)
    rates = topology.rates(row)
    memory = min(rates.bandwidth[r][r] for r in range(ranks))
    # Rows that move over the link are written to, or read from, the device's memory as well.
    in_memory = edges * step.edge_columns * element_bytes / memory + (
        link_in + link_out + exchanged
    ) / min(topology.bulk.bandwidth[r][r] for r in range(ranks))
    between = min(topology.bulk.ingress) or host / 2
    parts = {
        "host link": loaded / host + max(link_in, link_out) / host,
        "files": (files_in + files_out) * ranks / FILE_RATE,
        "links between GPUs": exchanged / between if exchanged else 0.0,
        "memory of the GPU": in_memory,
        "launches": spread.chunks * _CHUNK_SECONDS,
    }
    bound = max(parts, key=parts.__getitem__)
    # Nothing runs beside the copy of whole row sets.
    seconds = max(parts.values()) if bound == "host link" else parts[bound] + loaded / host
    return PassCost(step.name, link_in + loaded, link_out, files_in, files_out, exchanged,
                    seconds, bound)  # fmt: skip
