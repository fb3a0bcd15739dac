"""Measures a machine's links once, by timing gathers, and stores the result."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import peergraph._C as _C
from peergraph.memory.device.default_machine import WorkRates
from peergraph.memory.device.machine_cache import cache_file, identity, keep
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.region.peer_access import Pair, PeerAccess, refused_gpus
from peergraph.memory.topology.probe import Probe
from peergraph.memory.topology.rates import Rates
from peergraph.memory.topology.topology import Topology

ROW_BYTES = (16, 32, 64, 128, 512, 1024)
"""The row widths that are measured."""

# The version of the method. Results of another version are not used.
_METHOD = "4"

_BULK_BYTES = 1 << 16  # rows so wide that they count as bulk


@collective("measure_topology")
def measure_topology(group: Group, *, force: bool = False) -> Topology:
    """Returns the links of the group's GPUs: measured once per machine, then read from the cache.

    Collective; synchronises. Times gathers of random rows of :data:`ROW_BYTES` bytes, and of 64 KiB
    for bulk, by CUDA events, while all GPUs do the same. The rows are in the GPU's own memory, in
    each peer's memory, in the memory of all peers, and in pinned host memory, in ascending order of
    address and in random order. The latency is the time of a gather of one row. The measurement
    takes 1 GiB of every GPU, up to 16 GiB of the machine's memory, and about ten seconds. The cache
    is a file in ``$XDG_CACHE_HOME/peergraph``, named by the GPUs' identities and the driver. Ranks
    without a GPU measure the machine's memory.

    Args:
        group: the ranks.
        force: measure even if there is a result, and replace the result.

    Raises:
        MemoryError: not enough memory for the tables.
        PeerLostError: a rank is missing.
    """
    cached = None if force else cached_topology(group)
    if cached is not None:
        return cached
    topology = _measure(group)
    path = _cache_file(group)
    if group.rank == 0:
        keep(path, topology.to_json())
    group.barrier()
    return topology


@collective("cached_topology")
def cached_topology(group: Group) -> Topology | None:
    """Returns the stored result of :func:`measure_topology` for these GPUs, or None. Collective."""
    path = _cache_file(group)
    return group.broadcast(_read(path) if group.rank == 0 else None)  # type: ignore[no-any-return]


@collective("assumed_topology")
def assumed_topology(group: Group) -> Topology:
    """Returns the measured links of the group's GPUs, or default figures, without the links of
    pairs that do not reach each other. Collective.
    """
    topology = cached_topology(group)
    if topology is None:
        topology = Topology.default(group.world_size, gpus=group.device.type == "cuda")
    return topology.masked(PeerAccess.of(group).refused)


def known_topology() -> Topology | None:
    """Returns the same as :func:`cached_topology` with a rank on each GPU that this process sees
    (one rank if it sees none). Not collective.
    """
    devices = [torch.device("cpu")]
    if _C.has_cuda and torch.cuda.is_available():
        devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    refused = refused_gpus(len(devices)) if devices[0].type == "cuda" else frozenset()
    return _read(_file_of([identity(device) for device in devices], refused))


def _read(path: Path) -> Topology | None:
    try:
        return Topology.from_json(path.read_text())
    except (OSError, ValueError):  # ValueError: damaged, or of another version
        return None


def _cache_file(group: Group) -> Path:
    refused = PeerAccess.of(group).refused
    return _file_of(group.all_gather(identity(group.device)), refused)


def _file_of(identities: list[str], refused: frozenset[Pair]) -> Path:
    parts = [*identities, str(ROW_BYTES), _METHOD]
    return cache_file("topology", [*parts, str(sorted(refused))] if refused else parts)


def _measure(group: Group) -> Topology:
    probe = Probe(group)
    try:
        bulk = probe.random_rows(_BULK_BYTES, probe.size // (4 * _BULK_BYTES))
        one_row = probe.random_rows(4, 1)
        rows = tuple(
            (w, probe.random_rows(w, max(probe.reads, probe.least_bytes // w))) for w in ROW_BYTES
        )
        host_reads = probe.host_reads()
        staged = probe.choose_host_reads()
    finally:
        probe.close()
    host_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = host_memory // group.world_size
    if group.device.type == "cuda":
        memory = torch.cuda.get_device_properties(group.device).total_memory
    return Topology(
        name=_name(group),
        bulk=bulk,
        latency=tuple(tuple(4 / v if v else 0.0 for v in row) for row in one_row.bandwidth),
        memory=tuple(group.all_gather(memory)),
        host_memory=host_memory,
        rows=rows,
        host_reads=host_reads,
        staged=staged,
        caches=tuple(group.all_gather(_cache_bytes(group.device))),
        work=WorkRates(packed_rows=_packed_rows(rows[0][1])),
    )


def _packed_rows(narrowest: Rates) -> float:
    """Returns the narrowest rows a second that the slowest GPU gathers from its own memory."""
    return min(row[gpu] for gpu, row in enumerate(narrowest.bandwidth)) / ROW_BYTES[0]


def _name(group: Group) -> str:
    if group.device.type == "cpu":
        return f"{group.world_size} ranks without a GPU"
    return f"{group.world_size} x {torch.cuda.get_device_name(group.device)}"


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    # The oldest supported torch lacks the property.
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
