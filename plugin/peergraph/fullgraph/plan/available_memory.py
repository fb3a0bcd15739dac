"""The machine and the memory that ranks have for a graph."""

from __future__ import annotations

import shutil
from os import PathLike

from peergraph.memory import Group, Topology, cached_topology, collective_call, machine
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.memory.topology.machines import fully_linked
from peergraph.number_arguments import check_number

_CPU_RATE = 10e9  # bytes per second, assumed of ranks without a GPU that were not measured


def group_topology(group: Group, given: Topology | str | None) -> Topology:
    """Returns the machine that times are predicted for, with as many GPUs as there are ranks.

    Of several machines, all are taken to be as the first one, and rows that come from GPU i of
    another machine to be passed on by GPU i of this one. Collective.

    Args:
        given: the machine or its name; None: this one, as it was measured.
    """
    machines = group.machines
    count = max(map(len, machines.ranks))
    found = machine(given) if isinstance(given, str) else given
    if found is None:
        found = group.broadcast(cached_topology(group.node_group))
        if machines.count > 1 and found is not None and found.num_gpus < count:
            found = None
    if found is None and group.device.type == "cuda":
        found = fully_linked(count)
    elif found is None:
        rates = [[_CPU_RATE] * count] * count
        found = Topology.from_matrix(rates, _CPU_RATE, memory=0, name="assumed figures")
    if found.num_gpus < count:
        raise ValueError(f"topology must have at least {count} GPUs, got {found.num_gpus}")
    if machines.count > 1:
        return found.on_machines(machines.ranks)
    return found if found.num_gpus == count else found.subset(range(count))


def device_budget(group: Group, memory_budget: int | None) -> int:
    """Returns the least bytes that a rank's device may use; None: what is free. Collective."""
    if memory_budget is None:
        if group.device.type == "cuda":
            memory_budget = free_gpu_memory(group.device)
        else:
            memory_budget = free_host_memory() // group.node_group.world_size
    least: int = min(group.all_gather(memory_budget))
    return least


def file_budget(group: Group, folder: str | PathLike[str] | None) -> int:
    """Returns the free bytes of the folders' disks, for all ranks together. Collective."""
    free = collective_call(group, lambda: 0 if folder is None else shutil.disk_usage(folder).free)
    return _least_share(group, free)


def host_budget(group: Group, given: int | None) -> int:
    """Returns the bytes of hosts for all ranks together; None: what is free. Collective.

    Args:
        given: bytes of each machine's host.

    Raises:
        TypeError, ValueError: `given` is no number of bytes.
    """
    check_number("host_memory", given, 0)
    return _least_share(group, free_host_memory() if given is None else given)


def _least_share(group: Group, num_bytes: int) -> int:
    """Returns as many bytes for all ranks as each can have of its machine's bytes. Collective."""
    ranks, machines = group.node_group.world_size, group.machines.count
    if machines == 1:
        return int(min(group.all_gather(num_bytes)))
    return int(min(group.all_gather(num_bytes // ranks))) * group.world_size
