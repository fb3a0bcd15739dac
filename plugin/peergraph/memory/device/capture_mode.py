"""Captures of CUDA graphs: whether one goes on, and work of other threads beside it."""

from __future__ import annotations

import torch

import peergraph._C as _C


def is_capturing(device: torch.device) -> bool:
    """Returns whether the current stream of a GPU is being captured; False for the CPU."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def use_thread_local_capture_mode() -> None:
    """Lets the calling thread work on a GPU while another thread captures a CUDA graph.

    While a thread captures a CUDA graph, as ``torch.cuda.graph`` does it, CUDA forbids other
    threads all calls but kernel launches (for instance allocating memory and querying events), and
    such a call invalidates the capture. A thread that has called this function is exempt until it
    ends: its mode is ``cudaStreamCaptureModeThreadLocal``. No effect in a build without CUDA.
    """
    if _C.has_cuda:
        _C.use_thread_local_capture_mode()
