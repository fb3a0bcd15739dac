"""Row ids: checks of what users pass, and the form that the compiled module takes."""

from __future__ import annotations

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import empty


def id_list(
    ids: torch.Tensor,
    out_index: torch.Tensor | None = None,
    host_begin: torch.Tensor | None = None,
    *,
    padded: bool = False,
    max_blocks: int = 0,
) -> _C.IdList:
    """The ids as the compiled module takes them.

    The list refers to the memory of the tensors, which are contiguous; the caller keeps them until
    the call.

    Args:
        ids: int32 or int64.
        out_index: int64 of the ids' length, gathers only: the row of id i becomes row out_index[i]
            of the result; None: row i.
        host_begin: int64 [1], with out_index only: `ids` are sorted by row, and those from this
            position on have their rows in host memory.
        padded: an id of -1 is no error and gives a row of zeros; gathers only.
        max_blocks: of the kernel on a GPU; 0: as many as fill it.
    """
    return _C.IdList(
        ids=ids, out_index=out_index, host_begin=host_begin, padded=padded, max_blocks=max_blocks
    )


def ids_on_device(
    ids: torch.Tensor, rows: int, device: torch.device, padded: bool = False
) -> torch.Tensor:
    """Returns the argument `ids` of a gather, contiguous and on `device`; checks ids on the CPU.

    Args:
        ids: as the user passed them.
        rows: of the table.
        device: the table's.
        padded: whether -1 stands for no row.

    Raises:
        TypeError, ValueError: not a tensor of ids; an empty one may have any dtype.
        IndexError: an id on the CPU is out of range.
    """
    if not isinstance(ids, torch.Tensor):
        raise TypeError(f"ids must be a tensor, got {type(ids).__name__}")
    ids = integers(ids)
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
    check_device("ids", ids, device)
    ids = ids.contiguous()
    if ids.device != device:
        _C.check_ids(id_list(ids, padded=padded), rows, torch.get_num_threads())
        ids = ids.to(device, non_blocking=True)
    return ids


def sort_by_row(
    ids: torch.Tensor, rows: int, order: torch.Tensor | None, first_host_row: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sorts ids by their internal rows.

    Args:
        ids: any shape, on the device; may be out of range.
        rows: of the table.
        order: [rows] user id -> internal row, None where they are the same.
        first_host_row: the first internal row in host memory.

    Returns:
        The sorted ids; the position of each in `ids`; int64 [1], how many of them have rows below
        `first_host_row`.
    """
    flat = as_wide_as_rows(ids.flatten(), rows)
    keys = flat.clamp(0, rows - 1)
    keys = keys if order is None else order[keys]
    if rows <= torch.iinfo(torch.int32).max:
        keys = keys.int()  # half the bytes to sort
    keys, positions = keys.sort()
    host_begin = torch.searchsorted(keys, keys.new_full((1,), first_host_row))
    return flat[positions], positions, host_begin


def as_wide_as_rows(ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns the ids, as int64 where int32 cannot hold the number of rows."""
    return ids if rows <= torch.iinfo(torch.int32).max else ids.long()


def integers(ids: torch.Tensor) -> torch.Tensor:
    """Returns the ids; no ids as int64, since torch makes a float32 tensor of an empty list."""
    if ids.numel() > 0 or ids.dtype in (torch.int32, torch.int64):
        return ids
    return ids.to(torch.int64)


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises ValueError unless the argument `name` is on the CPU or on `device`."""
    if tensor.device not in (device, torch.device("cpu")):
        expected = "cpu" if device.type == "cpu" else f"cpu or {device}"
        raise ValueError(f"{name} must be on {expected}, got {tensor.device}")


def out_tensor(
    out: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Returns `out` if it can take the result (ValueError if not), or a new tensor."""
    if out is None:
        return empty(shape, dtype, device)
    if out.dtype != dtype:
        raise ValueError(f"out must be {dtype}, got {out.dtype}")
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    check_device("out", out, device)
    return out


def check_distinct(name: str, ids: torch.Tensor, count: int, what: str) -> None:
    """Checks that `ids` are different numbers of 0 to `count` - 1. Synchronises with a GPU.

    Args:
        name: of the argument, for the error.
        ids: [n] int32 or int64; a permutation where n is `count`.
        count: the numbers' upper limit.
        what: the things that the ids number, in plural, for the error.

    Raises:
        IndexError: the first id out of range.
        ValueError: the first id that repeats an earlier one.
    """
    bad = (ids < 0) | (ids >= count)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise IndexError(f"{name}[{first}] = {int(ids[first])} is out of range for {count} {what}")
    seen = torch.zeros(count, dtype=torch.bool, device=ids.device)
    seen[ids.long()] = True
    if int(seen.count_nonzero()) == ids.numel():
        return
    ordered, positions = ids.sort(stable=True)
    first = int(positions[1:][ordered[1:] == ordered[:-1]].min())
    raise ValueError(f"{name}[{first}] = {int(ids[first])} repeats an earlier id")
