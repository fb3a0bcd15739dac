"""Checks the arguments `values`, `out`, `start` and `stop` of methods that read and write rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from peergraph.memory.device.launching import empty
from peergraph.memory.device.plain_tensor import check_output, plain
from peergraph.memory.table.id_list import check_device


def range_of_rows(start: int, stop: int | None, rows: int) -> range:
    """Returns the rows [start, stop) of a table.

    Args:
        start, stop: as in a slice, without negative numbers; None: to the end.
        rows: the number of rows of the table.

    Raises ValueError for a range outside the table.
    """
    stop = rows if stop is None else stop
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"rows [{start}, {stop}) are not within a table of {rows} rows")
    return range(start, stop)


def check_values(
    values: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Checks the argument `values` of a scatter. Returns the values as they are to be read.

    Args:
        values: the values that the user passed.
        shape: the shape that they must have.
        dtype: the dtype of the table.
        device: the device of the table. Values may also be on the CPU.

    Raises:
        TypeError: `values` is not a dense tensor.
        ValueError: the dtype, the shape or the device is wrong.
    """
    values = plain("values", values)
    if values.dtype != dtype:
        raise ValueError(f"values must be {dtype}, got {values.dtype}")
    if tuple(values.shape) != shape:
        raise ValueError(f"values must have shape {shape}, got {tuple(values.shape)}")
    check_device("values", values, device)
    return values


def out_tensor(
    out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns `out` if it can take the result, or a new tensor.

    Autograd is told that `out` changes, as by functions of torch.

    Raises:
        TypeError: `out` is not a dense tensor.
        ValueError: the dtype, the shape or the device is wrong, or `out` is not contiguous, a
            conjugate or negative view, or needs a gradient.
    """
    if out is None:
        return empty(shape, dtype, device)
    check_output("out", out)
    if out.dtype != dtype:
        raise ValueError(f"out must be {dtype}, got {out.dtype}")
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    check_device("out", out, device)
    if out.requires_grad and torch.is_grad_enabled():
        raise ValueError("out must not need a gradient: pass out.detach(), or use torch.no_grad()")
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out


def gathered_to(
    out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> AbstractContextManager[torch.Tensor]:
    """Returns a context with the tensor on `device` to which a gather writes.

    This is `out`, if it is on the device. If `out` is on the CPU, the context copies the result
    to it at its end, and waits for the GPU. If `out` is None, the tensor is new.

    Raises ValueError for an `out` that cannot take the result.
    """
    target = out_tensor(out, shape, dtype, device)
    # nullcontext is faster than a generator: small gathers are frequent.
    return nullcontext(target) if target.device == device else _copied_to(target, device)


@contextmanager
def _copied_to(target: torch.Tensor, device: torch.device) -> Iterator[torch.Tensor]:
    result = torch.empty(target.shape, dtype=target.dtype, device=device)
    yield result
    target.copy_(result)
