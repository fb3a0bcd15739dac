"""Counts in shared memory by which ranks tell each other that rows have arrived or were read."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.memory import Group

FLAG_BYTES = 128
"""Counts are this far apart, so that two ranks do not write to the same line of a cache."""


def clear_flags(flags: Tensor, group: Group) -> None:
    """Sets this rank's flags to zero before any rank raises one. Collective; waits for the GPU: a
    zero that is written later would hide what another rank has told.
    """
    flags.zero_()
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    group.barrier()
