"""CUDA graphs that another thread captures."""

from __future__ import annotations

import peergraph._C as _C


def stay_outside_captures() -> None:
    """For a thread with work of its own on a GPU, until it ends.

    While a thread captures a CUDA graph, as ``torch.cuda.graph`` does it, CUDA refuses what other
    threads do besides launching kernels (allocating memory, asking for events), and the capture
    fails. It bears with a thread that has called this. No effect in a build without CUDA.
    """
    if _C.has_cuda:
        _C.stay_outside_captures()
