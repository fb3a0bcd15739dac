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
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Makes a vector ``[length]`` of zeros, lets each rank change it, and returns it. Collective.

    Args:
        write: changes the vector in place. The ranks call it one after the other.
    """
    if length == 0:
        return torch.zeros(0, dtype=dtype, device="cpu")
    owned = dtype.itemsize * length if group.rank == 0 else 0
    region = SharedRegion.create(owned, group, torch.device("cpu"))
    try:
        vector = region.part(0, dtype, (length,))
        for rank in range(group.world_size):
            if rank == group.rank:
                write(vector)
            group.barrier()
        return vector.clone()
    finally:
        region.close()
