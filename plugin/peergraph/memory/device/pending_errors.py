"""Errors that kernels report: ids out of range, known once the device has run the kernel."""

from __future__ import annotations

import torch

import peergraph._C as _C


def raise_pending(device: torch.device) -> None:
    """Raises the IndexError that an earlier kernel on `device` has reported by now.

    Costs one read of host memory where there is none; does not synchronise then.
    """
    if device.type == "cuda":
        _C.raise_pending(device.index)


def synchronize(device: str | torch.device | None = None) -> None:
    """Waits for a device, by default the current GPU, and raises its pending errors.

    Kernels find ids out of range asynchronously: a `gather` on a GPU returns before they have run.
    The IndexError comes with this call, or else with a later one that uses the device.
    Without a GPU there is nothing to wait for.
    """
    if not _C.has_cuda or not torch.cuda.is_available():
        return
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        return
    if chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.synchronize(chosen)
    raise_pending(chosen)
