"""Checks of what users pass to gathers, and how it goes to the compiled module."""

from __future__ import annotations

import torch

import peergraph._C as _C


def id_list(ids: torch.Tensor) -> _C.IdList:
    """The ids as the compiled module takes them: a contiguous int32 or int64 tensor's address."""
    return _C.IdList(ids=ids.data_ptr(), id_bytes=ids.dtype.itemsize, count=ids.numel())


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises ValueError unless the argument `name` is on the CPU or on `device`."""
    if tensor.device not in (device, torch.device("cpu")):
        places = "cpu" if device.type == "cpu" else f"cpu or {device}"
        raise ValueError(f"{name} must be on {places}, got {tensor.device}")


def out_tensor(
    out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns `out` if it can take the result (ValueError if not), or a new tensor."""
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device)
    if out.dtype != dtype:
        raise ValueError(f"out must be {dtype}, got {out.dtype}")
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    check_device("out", out, device)
    return out
