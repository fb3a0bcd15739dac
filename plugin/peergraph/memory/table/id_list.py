"""Checks of what users pass to gathers, and how it goes to the compiled module."""

from __future__ import annotations

import torch

import peergraph._C as _C
from peergraph.memory.device.allocate import empty


def id_list(
    ids: torch.Tensor,
    places: torch.Tensor | None = None,
    far: torch.Tensor | None = None,
    *,
    padded: bool = False,
    max_blocks: int = 0,
) -> _C.IdList:
    """The ids as the compiled module takes them: addresses of contiguous tensors.

    Args:
        ids: int32 or int64.
        places: int64, row i of a gather's result is row places[i]; None: the order of the ids.
        far: with places, int64, one element: from which id on the rows are on the host; the ids
            are in the order of their rows then.
        padded: an id of -1 is no error and gives a row of zeros; gathers only.
        max_blocks: of the kernel on a GPU; 0: as many as fill it.
    """
    return _C.IdList(
        ids=ids.data_ptr(),
        id_bytes=ids.dtype.itemsize,
        count=ids.numel(),
        places=0 if places is None else places.data_ptr(),
        far=0 if far is None else far.data_ptr(),
        padded=padded,
        max_blocks=max_blocks,
    )


def near_ids(
    ids: torch.Tensor, rows: int, device: torch.device, padded: bool = False
) -> torch.Tensor:
    """The argument `ids` of a gather, contiguous and on `device`; those from the CPU are checked.

    Args:
        padded: whether -1 stands for no row.

    Raises:
        TypeError, ValueError: no tensor of ids; an empty one may have any dtype.
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


def sorted_by_row(
    ids: torch.Tensor, rows: int, order: torch.Tensor | None, first_far: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The ids in the order of their rows, the place of each in `ids`, and [1] how many are of rows
    below `first_far`.

    Args:
        ids: any shape, on the device; may be out of range.
        rows: of the table.
        order: [rows] id -> row, None where they are the same.
        first_far: a row.
    """
    flat = wide_enough(ids.flatten(), rows)
    keys = flat.clamp(0, rows - 1)
    keys = keys if order is None else order[keys]
    if rows <= torch.iinfo(torch.int32).max:
        keys = keys.int()  # half the sort's bytes
    keys, places = keys.sort()
    far = torch.searchsorted(keys, keys.new_full((1,), first_far))
    return flat[places], places, far


def wide_enough(ids: torch.Tensor, rows: int) -> torch.Tensor:
    """The ids, as int64 where int32 does not hold the number of rows, to reckon with it."""
    return ids if rows <= torch.iinfo(torch.int32).max else ids.long()


def integers(ids: torch.Tensor) -> torch.Tensor:
    """The ids; if there are none, as int64: an empty list becomes a float32 tensor in torch."""
    if ids.numel() > 0 or ids.dtype in (torch.int32, torch.int64):
        return ids
    return ids.to(torch.int64)


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
    """Checks that `ids` are different numbers of 0 to `count` - 1: a permutation, where they are as
    many. Synchronises with a GPU.

    Args:
        name: of the argument.
        ids: [n] int32 or int64.
        what: is numbered by them, in plural.

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
    ordered, places = ids.sort(stable=True)
    first = int(places[1:][ordered[1:] == ordered[:-1]].min())
    raise ValueError(f"{name}[{first}] = {int(ids[first])} repeats an earlier id")
