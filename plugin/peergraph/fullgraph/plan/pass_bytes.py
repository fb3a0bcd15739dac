"""The bytes that a pass over the chunks of offloaded training moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_cost import DEVICE, FILE, TIERS, USER, Placement
from peergraph.fullgraph.plan.schedule import Schedule
from peergraph.fullgraph.plan.spread import Spread
from peergraph.memory import Topology


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
    """Returns what numbers of chunks are compared by: the bytes of passes over the rates of links.

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
