"""A group whose collectives soon give up."""

from __future__ import annotations

import torch.distributed as dist

from peergraph.memory import Group


def impatient_group(timeout: float) -> Group:
    """Collective. The ranks may take their time to come here, and no more than `timeout` seconds
    for each other afterwards.
    """
    group = Group.current(timeout=60)
    dist.barrier()
    group.timeout = timeout
    return group
