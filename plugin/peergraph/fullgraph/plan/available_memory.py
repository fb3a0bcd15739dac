"""The machine and the memory that ranks have for a graph."""

from __future__ import annotations

import shutil
from os import PathLike

from peergraph.memory import Group, Topology, cached_topology, collective_call, machine
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.memory.topology.machines import fully_linked

_CPU_RATE = 10e9  # bytes per second, assumed of ranks without a GPU that were not measured


def group_topology(group: Group, given: Topology | str | None) -> Topology:
    """Returns the machine that times are predicted for, with as many GPUs as there are ranks.

    Args:
        given: the machine or its name; None: this one, as it was measured.
    """
    count = group.world_size
    found = machine(given) if isinstance(given, str) else given
    if found is None:
        found = cached_topology(group)
    if found is None and group.device.type == "cuda":
        found = fully_linked(count)
    elif found is None:
        rates = [[_CPU_RATE] * count] * count
        found = Topology.from_matrix(rates, _CPU_RATE, memory=0, name="assumed figures")
    if found.num_gpus < count:
        raise ValueError(f"topology must have at least {count} GPUs, got {found.num_gpus}")
    return found if found.num_gpus == count else found.subset(range(count))


def device_budget(group: Group, memory_budget: int | None) -> int:
    """Returns the least bytes that a rank's device may use; None: what is free. Collective."""
    if memory_budget is None:
        if group.device.type == "cuda":
            memory_budget = free_gpu_memory(group.device)
        else:
            memory_budget = free_host_memory() // group.world_size
    least: int = min(group.all_gather(memory_budget))
    return least


def file_budget(group: Group, folder: str | PathLike[str] | None) -> int:
    """Returns the least free bytes of the folders' disks, for all ranks together. Collective."""
    free = collective_call(group, lambda: 0 if folder is None else shutil.disk_usage(folder).free)
    least: int = min(group.all_gather(free))
    return least


def host_budget(group: Group, given: int | None) -> int:
    """Returns the least bytes of the host for all ranks together; None: what is free. Collective.

    Raises:
        TypeError, ValueError: `given` is no number of bytes.
    """
    if given is not None and (not isinstance(given, int) or isinstance(given, bool)):
        raise TypeError(f"host_memory must be an int, in bytes, got {given!r}")
    if given is not None and given < 0:
        raise ValueError(f"host_memory must not be negative, got {given}")
    least: int = min(group.all_gather(free_host_memory() if given is None else given))
    return least
