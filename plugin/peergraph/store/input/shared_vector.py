"""Makes vectors to which all ranks of a build contribute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from peergraph.memory import Group, SharedRegion


def build_shared_vector(
    group: Group,
    length: int,
    write: Callable[[Tensor], None],
    *,
    at_once: bool = False,
) -> Tensor:
    """Makes an int64 vector ``[length]`` of zeros, lets each rank change it, and returns it.
    Collective.

    Args:
        write: changes the vector in place.
        at_once: whether the ranks call it at the same time, for different parts of the vector; else
            one after the other.
    """
    if length == 0:
        return torch.zeros(0, dtype=torch.int64, device="cpu")
    owned = 8 * length if group.rank == 0 else 0
    region = SharedRegion.create(owned, group, "cpu", huge_pages=False)
    try:
        vector = region.part(0, torch.int64, (length,))
        for rank in range(group.world_size):
            if at_once or rank == group.rank:
                write(vector)
            group.barrier()
            if at_once:
                break
        return vector.clone()
    finally:
        region.close()


def add_over_ranks(
    group: Group,
    length: int,
    add: Callable[[Tensor], None],
    dtype: torch.dtype = torch.int64,
    *,
    atomically: bool,
) -> Tensor:
    """Returns the sum of the ranks' vectors ``[length]`` on the CPU; of bools, where any is True.
    Collective.

    Args:
        add: adds to a vector on the group's device, of zeros at first. The ranks call it at the
            same time; it may call collectives.
        dtype: the dtype of the vectors.
        atomically: whether all ranks may add to one vector, on the CPU; else each rank gets one.
    """
    owned = dtype.itemsize * length if group.rank == 0 else 0
    region = SharedRegion.create(owned, group, "cpu", huge_pages=atomically)
    try:
        total = region.part(0, dtype, (length,))
        if atomically:
            add(total)
        else:
            own = torch.zeros(length, dtype=dtype, device=group.device)
            add(own)
            # Ranks add different ranges at a time, so that no two write to the same one.
            for turn in range(group.world_size):
                part = (group.rank + turn) % group.world_size
                begin, end = (length * p // group.world_size for p in (part, part + 1))
                total[begin:end] += own[begin:end].cpu()
                group.barrier()
        group.barrier()
        return total.clone()
    finally:
        region.close()
