"""Errors that kernels report, such as ids out of range: raised after the device has run them."""

from __future__ import annotations

import atexit
from functools import cache

import torch

import peergraph._C as _C


def raise_pending(device: torch.device) -> None:
    """Raises the error that an earlier kernel on `device` has reported by now.

    Without an error it costs one read of host memory, and does not synchronise.
    """
    if device.type == "cuda":
        _C.raise_pending(device.index)


@cache
def raise_at_exit(device: torch.device) -> None:
    """Has the process show an error of `device` at its end that no operation has raised before."""
    atexit.register(raise_pending, device)


def synchronize(device: str | torch.device | None = None) -> None:
    """Waits for a device, by default the current GPU, and raises its pending errors.

    Kernels find ids out of range asynchronously: a `gather` on a GPU returns before they have run.
    This call raises the IndexError, or else a later call that uses the device raises it. The same
    holds for the RuntimeError of an ``edge_index`` that was written in a way that torch does not
    count. Without a GPU the call returns at once.
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
