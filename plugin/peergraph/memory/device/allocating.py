"""Memory of a process's own, for what an op returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from peergraph import _C

# As NumPy does; below, the allocator uses memory again that was touched before.
_WORTH_HUGE_PAGES = 4 << 20


def empty(shape: int | Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``; much of it on the CPU lies in huge pages, where the system has them."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cpu" and made.nbytes >= _WORTH_HUGE_PAGES:
        _C.ask_for_huge_pages(made.data_ptr(), made.nbytes)
    return made
