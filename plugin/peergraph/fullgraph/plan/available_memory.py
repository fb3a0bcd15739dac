"""The machine and the memory that ranks have for a graph."""

from __future__ import annotations

import shutil
from os import PathLike

from peergraph.memory import Group, Topology, collective_call
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.memory.topology.measure import assumed_topology
from peergraph.number_arguments import check_number


def group_topology(group: Group, topology: Topology | None) -> Topology:
    """Returns the links of the ranks, with as many GPUs as there are ranks. Collective.

    Of several machines, all are taken to be as the first one, and rows that come from GPU i of
    another machine to be passed on by GPU i of this one.

    Args:
        topology: of one machine; None: this one, as it was measured, else the default figures.

    Raises:
        ValueError: fewer GPUs than ranks of a machine.
    """
    machines = group.machines
    count = max(map(len, machines.ranks))
    if topology is None:
        topology = group.broadcast(assumed_topology(group.node_group))
        if topology.num_gpus < count:
            topology = Topology.default(count, gpus=group.device.type == "cuda")
    if topology.num_gpus < count:
        raise ValueError(f"topology must have at least {count} GPUs, got {topology.num_gpus}")
    if machines.count > 1:
        return topology.on_machines(machines.ranks)
    return topology if topology.num_gpus == count else topology.subset(range(count))


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


def host_budget(group: Group, num_bytes: int | None) -> int:
    """Returns the bytes of hosts for all ranks together; None: what is free. Collective.

    Args:
        num_bytes: bytes of each machine's host.

    Raises:
        TypeError, ValueError: `num_bytes` is no number of bytes.
    """
    check_number("host_memory", num_bytes, 0)
    return _least_share(group, free_host_memory() if num_bytes is None else num_bytes)


def _least_share(group: Group, num_bytes: int) -> int:
    """Returns as many bytes for all ranks as each can have of its machine's bytes. Collective."""
    ranks, machines = group.node_group.world_size, group.machines.count
    if machines == 1:
        return int(min(group.all_gather(num_bytes)))
    return int(min(group.all_gather(num_bytes // ranks))) * group.world_size
