"""Which ranks of a machine can map each other's memory: the one place that asks the driver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

import torch

import peergraph._C as _C
from peergraph.environment import read_variable
from peergraph.memory.device.machine_cache import identity
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.region.numa import numa_node
from peergraph.memory.region.parts import CudaHandle, CudaPart, Part

Pair = tuple[int, int]

REFUSED_PAIRS = "PEERGRAPH_REFUSED_PAIRS"
"""The environment variable with pairs that are taken not to reach each other, as ``0-1,2-3``, or
``all``: numbers of ranks on the machine (for one process, of its GPUs)."""


def parse_pairs(text: str) -> tuple[Pair, ...]:
    """Parses pairs, as in ``0-1,2-3``. Raises ValueError for other texts."""
    pairs = [part.split("-") for part in text.split(",")] if text.strip() else []
    return tuple((min(int(a), int(b)), max(int(a), int(b))) for a, b in pairs)


def refused_by_user(count: int) -> frozenset[Pair]:
    """Returns the pairs of 0..count - 1 that PEERGRAPH_REFUSED_PAIRS refuses, each ascending."""

    def parse(text: str) -> Iterable[Pair]:
        return combinations(range(count), 2) if text == "all" else parse_pairs(text)

    none: Iterable[Pair] = ()
    named = read_variable(REFUSED_PAIRS, parse, "all, or pairs like 0-1,2-3", none)
    return frozenset((a, b) for a, b in named if a != b and b < count)


def refused_gpus(count: int) -> frozenset[Pair]:
    """Returns the pairs of this process's GPUs 0..count - 1 of which one does not reach the other.
    Not collective.
    """
    pairs = combinations(range(count), 2)
    return refused_by_user(count) | {p for p in pairs if not _reach_each_other(*p)}


def _reach_each_other(first: int, second: int) -> bool:
    reaches = torch.cuda.can_device_access_peer
    return bool(reaches(first, second) and reaches(second, first))


@dataclass(frozen=True)
class PeerAccess:
    """The ranks of a machine, and which pairs of them map each other's memory.

    Args:
        rank: this rank.
        devices: by rank, its device as this process sees it; None: a GPU that it does not see.
        refused: the pairs that cannot, each ascending.
        nodes: the NUMA nodes of the sockets that the GPUs are on; empty: one, or not known.
    """

    rank: int
    devices: tuple[torch.device | None, ...]
    refused: frozenset[Pair]
    nodes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, group: Group) -> PeerAccess:
        """Returns the access of a machine's ranks, asked once for a group. The first call is
        collective.

        GPUs are asked of the driver (a GPU that a rank does not see is tried with a block of
        memory), and pairs of PEERGRAPH_REFUSED_PAIRS are taken out, also between ranks without
        GPUs.

        Raises:
            RuntimeError: on all ranks, if there are several ranks and one has a MIG slice.
        """
        key = cls, group.device
        if key not in group.shared:
            group.shared[key] = cls._asked(group)
        access: PeerAccess = group.shared[key]
        return access

    @classmethod
    def _asked(cls, group: Group) -> PeerAccess:
        rank, world = group.rank, group.world_size
        devices: tuple[torch.device | None, ...] = (group.device,) * world
        node = numa_node(group.device)
        if world == 1:
            return cls(rank, devices, frozenset(), frozenset(() if node is None else (node,)))
        refused = {pair for pair in refused_by_user(world) if rank in pair}
        if group.device.type == "cuda":
            devices = _visible_devices(group)
            reached = _reached_by_trial(group, devices)
            for other, device in enumerate(devices):
                if device is not None:
                    # A GPU reaches itself: ranks may share it.
                    own = group.device.index
                    reaches = device == group.device or _reach_each_other(own, device.index)
                else:
                    reaches = other in reached
                if not reaches:
                    refused.add((min(rank, other), max(rank, other)))
        everyone: list[tuple[set[Pair], int | None]] = group.all_gather((refused, node))
        nodes = frozenset(node for _, node in everyone if node is not None)
        return cls(rank, devices, frozenset().union(*(pairs for pairs, _ in everyone)), nodes)

    @property
    def is_full(self) -> bool:
        """Whether all ranks map each other's memory."""
        return not self.refused

    @property
    def distant(self) -> list[int]:
        """The ranks whose memory this one cannot map."""
        return [r for r in range(len(self.devices)) if not self.reaches(r)]

    def reaches(self, owner: int, reader: int | None = None) -> bool:
        """Returns whether a rank (None: this one) maps the memory of another."""
        reader = self.rank if reader is None else reader
        return (min(owner, reader), max(owner, reader)) not in self.refused

    def check(self, owner: int, reader: int | None = None) -> None:
        """Raises RuntimeError if a rank (None: this one) cannot map the memory of another."""
        if not self.reaches(owner, reader):
            raise self.error((self.rank if reader is None else reader, owner))

    def error(self, pair: Pair) -> RuntimeError:
        """Returns the error for a pair of ranks whose memory is needed."""
        reader, owner = pair
        return RuntimeError(
            f"rank {reader} cannot map the memory of rank {owner}: their GPUs have no peer access "
            f"(NVLink or PCIe), or {REFUSED_PAIRS} refuses the pair. Let Store.build place the "
            "rows (each plan then has copies that every GPU reaches), or keep them replicated or "
            "in host memory; `peergraph info` shows all pairs"
        )


def _visible_devices(group: Group) -> tuple[torch.device | None, ...]:
    """Returns each rank's GPU as this process sees it. Collective."""
    name = torch.cuda.get_device_name(group.device)
    everyone: list[tuple[str, str]] = group.all_gather((identity(group.device), name))
    for rank, (_, other) in enumerate(everyone):
        if " MIG " in other and len({identity for identity, _ in everyone}) > 1:
            raise RuntimeError(
                f"rank {rank} has a MIG slice ({other}): slices share no memory with other GPUs or "
                "slices. One rank on a slice is supported; for several ranks use whole GPUs"
            )
    own = {}
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        own[identity(device)] = device
    return tuple(own.get(other) for other, _ in everyone)


def _reached_by_trial(group: Group, devices: tuple[torch.device | None, ...]) -> set[int]:
    """Returns the ranks with GPUs that this process does not see and whose memory it maps all the
    same. Collective.
    """
    if not any(group.all_gather(None in devices)):
        return set()
    part, handle = collective_call(group, lambda: CudaPart.create(1, group.device, True))
    handles: list[CudaHandle] = group.all_gather(handle)
    opened: dict[int, Part] = {}
    for rank, device in enumerate(devices):
        if device is None:
            try:
                opened[rank] = handles[rank].open(group.device)
            except RuntimeError:
                continue
    reached = set(opened)
    opened.clear()
    group.barrier()
    part.release_with(_C.cuda_free)
    return reached
