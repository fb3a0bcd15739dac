"""Where offloaded rows are placed, the memory of a chunk, and the bytes that passes move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.schedule import SEQUENTIAL, SOURCE, Schedule, StoredRows
from peergraph.fullgraph.plan.spread import Spread
from peergraph.memory import Topology

DEVICE, HOST, FILE = TIERS = ("device", "host", "file")
USER = "user"  # the tensor or table that the user gave, which is not copied
LEAST_PART = 1 / 32
"""The least share of rows on the device for which the rows are split."""
SPLIT_RESERVE = 1 / 32
"""The share of the device's budget that split rows leave: for rows of few nodes, such as gradients
of selected rows, which no plan counts."""
# Of the memory that a dry run saw, what chunks take besides: kernels' own, and rows of chunks that
# are larger than the mean.
_UNSEEN_WORK = 1 / 4
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
            -(-facts.num_edges[rank] // chunks),
            # Other ranks may need any of this rank's rows at the same time.
            min(rows, sources) + sources * (ranks - 1) // ranks,
        )
        for rank, rows in enumerate(facts.rows)
    ]


def chunk_bytes(schedule: Schedule, chunk: ChunkSize, stages_sources: bool) -> int:
    """Returns the bytes of a rank's device for the buffers and the work of its largest chunk.

    Args:
        stages_sources: whether rows of sources come from the host or from other ranks, chunk by
            chunk; else they are read where they are, except by passes that add gradients to them.
    """
    most = 0.0
    for step in schedule.passes:
        moved = schedule.row_bytes(*step.reads, *step.writes)
        rows, edges = math.ceil(step.nodes * chunk.rows), math.ceil(step.edges * chunk.edges)
        work = rows * step.working_bytes + edges * step.edge_bytes + step.fixed_bytes
        own = (1 + _UNSEEN_WORK) * work + rows * _STAGES * moved
        read, added = schedule.row_bytes(*step.sources), schedule.row_bytes(*step.adds)
        of_sources = 0
        if added or (stages_sources and read):
            # Lists of a window's rows, in whose numbers the chunk has its edges.
            of_sources = _STAGES * _LIST_BYTES
            own += edges * _LIST_BYTES
            stages = (_STAGES, _ADDED_COPIES) if stages_sources else (1, 1)
            of_sources += stages[0] * read + stages[1] * added
        sources = chunk.sources
        if step.share < 1:
            sources = min(sources, math.ceil(step.share * chunk.edges))
        most = max(most, own + sources * of_sources)
    return math.ceil(most)


def row_list_bytes(
    facts: GraphFacts, schedule: Schedule, spread: Spread, stages_own_sources: bool
) -> tuple[int, ...]:
    """Returns the bytes of each rank for the lists of rows that chunks load, keep and send.

    Args:
        stages_own_sources: whether sources of a chunk are copied from the host chunk by chunk.
    """
    adds = schedule.adds_to_sources
    listed = 0.0
    for share in {step.share for step in schedule.passes if step.sources or step.adds}:
        # Edges to labelled nodes have lists of their own.
        moves = facts.world_size > 1 or stages_own_sources
        if moves or any(step.adds for step in schedule.passes if step.share == share):
            listed += spread.demand(share) + _EXCHANGE_LISTS * spread.exchanged(share)
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


def place_rows(
    schedule: Schedule,
    row_bytes: Mapping[str, int],
    rooms: Sequence[int],
    computed_bytes: Mapping[str, int] | None = None,
) -> Placement | None:
    """Returns the tier of each stored row set; None where they do not fit.

    Rows that are read in the order of edges come first: a chunk needs such rows several times.
    Row sets that never exist at the same time share memory.

    Args:
        row_bytes: of all rows of the busiest rank, by name.
        rooms: bytes of the device, the host and files, for one rank. Features take none of the
            host's and of files.
        computed_bytes: of the rows in a copy on the device, by name; None: as many.
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
        if rows.role == SEQUENTIAL and not rows.is_input and size:
            left = min(rooms[0] - used[DEVICE][at] for at in live)
            if left < size:
                left -= int(rooms[0] * SPLIT_RESERVE)
            if LEAST_PART <= left / size < 1:
                parts[rows.name] = left / size
                for at in live:
                    used[DEVICE][at] += left
                size -= left
        for tier, room in zip(TIERS, rooms, strict=True):
            if tier == DEVICE and rows.name in parts:
                continue
            if tier != DEVICE and rows.is_input:
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
            copied = (computed_bytes or row_bytes)[name]
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
        in_pass = dict.fromkeys(TIERS, 0)
        for rows in schedule.rows:
            tier = placement.tiers[rows.name]
            if tier != USER and rows.first <= at <= rows.last:
                part = round(row_bytes[rows.name] * placement.parts.get(rows.name, 0.0))
                in_pass[DEVICE] += part
                in_pass[tier] += row_bytes[rows.name] - part
        in_pass[DEVICE] += sum(row_bytes[name] for name, step in placement.loaded if step == at)
        most = {tier: max(most[tier], in_pass[tier]) for tier in TIERS}
    return most


@dataclass(frozen=True)
class PassBytes:
    """Bytes of one pass over all chunks, of the busiest rank.

    Args:
        name: of the pass.
        from_host, to_host: over the link of the rank to the host.
        from_files, to_files: of files; they cross the host link, too.
        loaded: of `from_host`, those of whole row sets, before the first chunk.
        from_ranks: that the rank receives from other ranks.
        network: that the rank's machine receives from other machines; it sends about as many.
        summed: that sums read on the device, a row for each edge.
    """

    name: str
    from_host: int
    to_host: int
    from_files: int
    to_files: int
    loaded: int
    from_ranks: int
    network: int
    summed: int


def pass_bytes(
    number: int,
    schedule: Schedule,
    facts: GraphFacts,
    row_bytes: Mapping[str, int],
    placement: Placement,
    spread: Spread,
) -> PassBytes:
    """Counts what one pass over all chunks moves.

    Every row that the chunks of a batch need, but for those that are copied to the device as a
    whole, crosses the link of the rank that has it once, and other ranks receive it from there
    (HongTu 5.1).

    Args:
        number: of the pass.
        row_bytes: of all rows of the busiest rank, by name.
    """
    step, tier_of = schedule.passes[number], placement.tiers
    tiers = (*TIERS, USER)
    incoming, outgoing = dict.fromkeys(tiers, 0.0), dict.fromkeys(tiers, 0.0)
    exchanged = network = loaded = 0.0
    for name in step.reads:
        if (name, number) in placement.loaded:
            continue
        incoming[tier_of[name]] += row_bytes[name] * placement.outside(name) * step.share
    for name in step.writes:
        outgoing[tier_of[name]] += row_bytes[name] * placement.outside(name)
    of_machine = facts.world_size / max(1, len(facts.machines))
    part = spread.loaded(step.share) / max(spread.batches, 1e-9)
    for name in (*step.sources, *step.adds):
        exchanged += row_bytes[name] * spread.sent * part
        network += row_bytes[name] * of_machine * spread.network * part
    degree = step.share * sum(facts.num_edges) / max(1, sum(facts.rows))
    summed = degree * sum(row_bytes[name] for name in (*step.sources, *step.adds))
    for name in step.sources:
        if (name, number) in placement.loaded:
            loaded += row_bytes[name] * (tier_of[name] != DEVICE)
            continue
        incoming[tier_of[name]] += row_bytes[name] * spread.loaded(step.share)
    for name in step.adds:
        # Sums that were written before and go on; zeros are written where no edge is.
        again = max(0.0, spread.loaded(step.share) - spread.distinct_sources(step.share))
        incoming[tier_of[name]] += row_bytes[name] * again
        outgoing[tier_of[name]] += row_bytes[name] * (1 + again)
    incoming[DEVICE] = outgoing[DEVICE] = 0.0
    return PassBytes(
        step.name,
        round(sum(incoming.values()) + loaded),
        round(sum(outgoing.values())),
        round(incoming[FILE]),
        round(outgoing[FILE]),
        round(loaded),
        round(exchanged),
        round(network),
        round(summed),
    )


def transfer_seconds(passes: Sequence[PassBytes], topology: Topology, chunks: int) -> float:
    """Returns the seconds that transfers take, to compare numbers of chunks: bytes over rates.

    It is no prediction of an epoch: of what the device does it has the reads of sums alone. Links
    and sums work beside each other, except for the first and the last chunk.

    Args:
        passes: of an epoch.
        topology: the ranks' links.
        chunks: of each rank.
    """
    ranks, work = topology.num_gpus, topology.work
    host = min(topology.bulk.host)
    own = min(row[gpu] for gpu, row in enumerate(topology.bulk.bandwidth))
    between = min(topology.bulk.ingress) or host / 2
    queue = work.queue_seconds if ranks == 1 else work.exchanged_queue_seconds
    seconds = 0.0
    for moved in passes:
        ways = moved.from_host - moved.loaded, moved.to_host
        links = (
            (max(ways) + work.duplex * min(ways)) / host,
            (moved.from_files + moved.to_files) * ranks / work.files,
            moved.from_ranks / between,
            moved.network / work.network,
            moved.summed / (work.sum_speedup * own),
        )
        longest = max(links)
        seconds += max(longest, chunks * queue) + (sum(links) - longest) / chunks
        seconds += moved.loaded / host + chunks * work.chunk_seconds
    return seconds
