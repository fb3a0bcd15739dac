"""Measures a machine's links once, with the gather that uses them, and keeps the result."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import peergraph._C as _C
from peergraph.memory.device.machine_cache import cache_file, identity, keep
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.topology.probe import Probe
from peergraph.memory.topology.topology import Topology

ROW_BYTES = (16, 32, 64, 128, 512, 1024)
"""The row widths that are measured."""

# The version of the method: results of another method are not used.
_METHOD = "4"

_BULK_BYTES = 1 << 16  # rows so wide that they count as bulk


@collective("measure_topology")
def measure_topology(group: Group, *, force: bool = False) -> Topology:
    """The links of the group's GPUs: measured once per machine, then read from the cache.

    Collective. Gathers of random rows of :data:`ROW_BYTES` bytes, and of 64 KiB for bulk, timed by
    CUDA events while all GPUs do the same: of own memory, of each peer in turn, of all peers
    together, of pinned host memory by rising address, and of it in no order. Latencies are those of
    a gather of one row. Takes 1 GiB of every GPU, up to 16 GiB of the machine's memory, and about
    ten seconds; synchronises. The cache is a file in ``$XDG_CACHE_HOME/peergraph``, by the
    GPUs' identities and the driver. Ranks without a GPU measure the machine's memory as each of
    them sees it.

    Args:
        force: measure even where a result is there, and replace it.

    Raises:
        NotImplementedError: GPUs that do not reach each other; plan with
            :meth:`Topology.from_matrix` there.
        MemoryError: no room for the tables.
        PeerLostError: a rank is missing.
    """
    known = None if force else cached_topology(group)
    if known is not None:
        return known
    topology = _measure(group)
    path = _cache_file(group)
    if group.rank == 0:
        keep(path, topology.to_json())
    group.barrier()
    return topology


@collective("cached_topology")
def cached_topology(group: Group) -> Topology | None:
    """What :meth:`measure_topology` found earlier for these GPUs, or None. Collective."""
    path = _cache_file(group)
    return group.broadcast(_read(path) if group.rank == 0 else None)  # type: ignore[no-any-return]


def known_topology() -> Topology | None:
    """As :func:`cached_topology` of a rank on each GPU that this process sees (one rank where it
    sees none). Not collective.
    """
    devices = [torch.device("cpu")]
    if _C.has_cuda and torch.cuda.is_available():
        devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return _read(_file_of([identity(device) for device in devices]))


def _read(path: Path) -> Topology | None:
    try:
        return Topology.from_json(path.read_text())
    except (OSError, ValueError):  # ValueError: damaged or of another version, measured anew
        return None


def _cache_file(group: Group) -> Path:
    return _file_of(group.all_gather(identity(group.device)))


def _file_of(identities: list[str]) -> Path:
    return cache_file("topology", [*identities, str(ROW_BYTES), _METHOD])


def _measure(group: Group) -> Topology:
    _check_peers(group)
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
        latency=tuple(tuple(4 / v for v in row) for row in one_row.bandwidth),
        host_latency=tuple(4 / v for v in one_row.host),
        memory=tuple(group.all_gather(memory)),
        host_memory=host_memory,
        rows=rows,
        host_reads=host_reads,
        staged=staged,
        caches=tuple(group.all_gather(_cache_bytes(group.device))),
    )


def _name(group: Group) -> str:
    if group.device.type == "cpu":
        return f"{group.world_size} ranks without a GPU"
    return f"{group.world_size} x {torch.cuda.get_device_name(group.device)}"


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    # The oldest torch does not know it.
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def _check_peers(group: Group) -> None:
    """Raises, on all ranks, where GPUs do not reach each other."""
    devices = group.all_gather(group.device)
    if group.device.type == "cpu":
        return
    index = group.device.index or 0
    mine = [d.index for d in devices if d != group.device and not _C.can_access(index, d.index)]
    for rank, out_of_reach in enumerate(group.all_gather(mine)):
        if out_of_reach:
            raise NotImplementedError(
                f"measuring links: GPU {devices[rank].index} does not reach the memory of GPU "
                f"{out_of_reach[0]}; describe the machine by Topology.from_matrix"
            )
