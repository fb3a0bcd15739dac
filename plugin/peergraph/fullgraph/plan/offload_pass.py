"""The bytes and the time of a pass over the chunks of offloaded training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peergraph.fullgraph.exchange.mode_cost import sum_seconds
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.network_rate import ASSUMED_NETWORK
from peergraph.fullgraph.plan.offload_cost import DEVICE, FILE, TIERS, USER, Placement
from peergraph.fullgraph.plan.offload_spread import Spread
from peergraph.fullgraph.plan.schedule.schedule import ChunkedPass, Schedule
from peergraph.memory import Topology

# Of files nothing is measured: one NVMe drive, shared by the ranks.
FILE_RATE = 3e9
# Seconds in which the host queues the operations of a chunk, on one rank and on several, and which
# a chunk takes at least besides its work. Measured on H200s.
_QUEUE_SECONDS, _EXCHANGED_QUEUE_SECONDS, _CHUNK_SECONDS = 1e-3, 2e-3, 1.6e-4
# Bytes of the direction with less traffic that take time, where a link moves rows in both: 48 of
# 55 GB/s were measured each way.
_DUPLEX = 0.15
# Operations a second of matrix products of float32 without TF32, and of narrower types.
_OPERATIONS, _NARROW_OPERATIONS = 5e13, 4e14


@dataclass(frozen=True)
class PassCost:
    """Bytes and time of one pass over all chunks, on the slowest rank.

    Args:
        name: of the pass.
        from_host, to_host: bytes over the link of the rank to the host.
        from_files, to_files: bytes of files; they cross the host link, too.
        from_ranks: bytes that the rank receives from other ranks.
        network: bytes that the rank's machine receives from other machines; it sends about as many.
        seconds: expected.
        bound: the longest part: "host link", "files", "links between GPUs", "network", "the GPU"
            or "launches".
    """

    name: str
    from_host: int
    to_host: int
    from_files: int
    to_files: int
    from_ranks: int
    network: int
    seconds: float
    bound: str


@dataclass
class _Moved:
    """Bytes of a rank in a pass, by tier."""

    incoming: dict[str, float]
    outgoing: dict[str, float]
    loaded: float = 0.0
    """Of whole row sets, before the first chunk."""
    exchanged: float = 0.0
    """Received from other ranks."""
    network: float = 0.0
    """Received by the machine from other machines."""


def pass_cost(
    number: int,
    schedule: Schedule,
    facts: GraphFacts,
    row_bytes: Mapping[str, int],
    placement: Placement,
    spread: Spread,
    topology: Topology,
    element_bytes: int,
    network: float = ASSUMED_NETWORK,
) -> PassCost:
    """Predicts one pass over all chunks, bytes over measured rates.

    Host memory is read and written at once, beside the work on the device; rows that are copied to
    the device as a whole come before it. Every other row that the chunks of a batch need crosses
    the link of the rank that has it once, and other ranks receive it from there (HongTu 5.1).

    Args:
        number: of the pass.
        row_bytes: of all rows of the busiest rank, by name.
        element_bytes: bytes of an element of the layers.
        network: bytes a second that each of several machines receives.
    """
    step = schedule.passes[number]
    moved = _moved_bytes(number, schedule, facts, row_bytes, placement, spread)
    link_in, link_out = sum(moved.incoming.values()), sum(moved.outgoing.values())
    files = moved.incoming[FILE], moved.outgoing[FILE]
    host = min(topology.bulk.host)
    between = min(topology.bulk.ingress) or host / 2
    queue = _QUEUE_SECONDS if facts.world_size == 1 else _EXCHANGED_QUEUE_SECONDS
    parts = {
        "host link": (max(link_in, link_out) + _DUPLEX * min(link_in, link_out)) / host,
        "files": sum(files) * facts.world_size / FILE_RATE,
        "links between GPUs": moved.exchanged / between,
        "network": moved.network / network,
        "the GPU": _device_seconds(step, facts, topology, element_bytes)
        + _access(topology, link_in + link_out + 2 * moved.exchanged),
        "launches": spread.chunks * queue,
    }
    bound = max(parts, key=parts.__getitem__)
    # Parts run beside each other, except for those of the first and of the last chunk.
    alone = sum(parts.values()) - parts["launches"] - parts[bound]
    seconds = parts[bound] + max(0.0, alone) / spread.chunks + spread.chunks * _CHUNK_SECONDS
    return PassCost(
        step.name,
        round(link_in + moved.loaded),
        round(link_out),
        round(files[0]),
        round(files[1]),
        round(moved.exchanged),
        round(moved.network),
        seconds + moved.loaded / host,
        bound,
    )


def _moved_bytes(
    number: int,
    schedule: Schedule,
    facts: GraphFacts,
    row_bytes: Mapping[str, int],
    placement: Placement,
    spread: Spread,
) -> _Moved:
    step, placed = schedule.passes[number], placement.tiers
    tiers = (*TIERS, USER)
    found = _Moved(dict.fromkeys(tiers, 0.0), dict.fromkeys(tiers, 0.0))
    for name in step.reads:
        found.incoming[placed[name]] += row_bytes[name] * placement.outside(name) * step.share
    for name in step.writes:
        found.outgoing[placed[name]] += row_bytes[name] * placement.outside(name)
    of_machine = facts.world_size / max(1, len(facts.machines))
    part = spread.loaded(step.share) / max(spread.batches, 1e-9)
    for name in (*step.sources, *step.adds):
        found.exchanged += row_bytes[name] * spread.sent * part
        found.network += row_bytes[name] * of_machine * spread.network * part
    for name in step.sources:
        if (name, number) in placement.loaded:
            found.loaded += row_bytes[name] * (placed[name] != DEVICE)
            continue
        found.incoming[placed[name]] += row_bytes[name] * spread.loaded(step.share)
        if name in step.own:
            found.incoming[placed[name]] += row_bytes[name] * step.share
    for name in step.adds:
        # Sums that were written before and go on; zeros are written where no edge is.
        again = max(0.0, spread.loaded(step.share) - spread.distinct_sources(step.share))
        found.incoming[placed[name]] += row_bytes[name] * again
        found.outgoing[placed[name]] += row_bytes[name] * (1 + again)
    found.incoming[DEVICE] = found.outgoing[DEVICE] = 0.0
    return found


def _device_seconds(
    step: ChunkedPass,
    facts: GraphFacts,
    topology: Topology,
    element_bytes: int,
) -> float:
    """The work of the slowest rank: sums over edges, matrix products, functions of rows."""
    rate = _OPERATIONS if element_bytes >= 4 else _NARROW_OPERATIONS
    slowest = 0.0
    for rank, rows in enumerate(facts.rows):
        rows_summed = rows * step.share
        edges = round(step.share * sum(v.num_edges[rank] for v in facts.volumes.values()))
        work = rows_summed * step.operations / rate
        work += _access(topology, rows_summed * step.row_columns * element_bytes)
        if step.edge_columns:
            row = step.edge_columns * element_bytes
            work += sum_seconds(topology, rank, edges, sum(facts.rows), row)
            work += _access(topology, rows_summed * row)
        slowest = max(slowest, work)
    return slowest


def _access(topology: Topology, num_bytes: float) -> float:
    """Seconds in which bytes of the device's memory are read or written in order."""
    ranks = range(topology.num_gpus)
    return num_bytes / (2 * min(topology.bulk.bandwidth[r][r] for r in ranks))
