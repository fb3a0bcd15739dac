"""Seeds of samples, drawn from torch's generator."""

from __future__ import annotations

import torch


def next_seed(generator: torch.Generator | None = None) -> int:
    """Draws a seed for one call of a sampler from a generator of torch.

    After the same ``torch.manual_seed`` the seeds are the same. Every worker of a data loader draws
    different seeds.
    Runs on the CPU; does not synchronise. Not collective.

    Args:
        generator: a generator of the CPU; None: torch's default generator of the CPU.

    Returns:
        An integer in ``0 .. 2**63 - 2``.
    """
    return int(torch.randint(0, 2**63 - 1, (), generator=generator, device="cpu"))
