"""Checks the row ids that users pass, and converts them for the compiled module."""

from __future__ import annotations

import torch

import peergraph._C as _C
from peergraph.memory.device.plain_tensor import plain


def id_list(
    ids: torch.Tensor,
    out_index: torch.Tensor | None = None,
    host_begin: torch.Tensor | None = None,
    *,
    padded: bool = False,
    max_blocks: int = 0,
) -> _C.IdList:
    """Converts ids to the argument that the compiled module takes.

    The result refers to the memory of the tensors. The caller keeps the tensors until the compiled
    module has been called.

    Args:
        ids: int32 or int64, contiguous.
        out_index: int64, one for each id, contiguous; for gathers only. The row of id i becomes row
            out_index[i] of the result; None: row i.
        host_begin: int64 [1], only with out_index. `ids` are sorted by row; the rows of the ids
            from this position on are in host memory.
        padded: whether an id of -1 gives a row of zeros instead of an error; for gathers only.
        max_blocks: the largest number of blocks of the kernel on a GPU; 0: as many as fill the GPU.
    """
    return _C.IdList(
        ids=ids, out_index=out_index, host_begin=host_begin, padded=padded, max_blocks=max_blocks
    )


def ids_on_device(
    ids: torch.Tensor, rows: int, device: torch.device, padded: bool = False
) -> torch.Tensor:
    """Returns the argument `ids` of a gather, contiguous and on `device`; checks ids on the CPU.

    Args:
        ids: the ids that the user passed.
        rows: the number of rows of the table.
        device: the device of the table.
        padded: whether an id may be -1, which stands for no row.

    Raises:
        TypeError, ValueError: `ids` is not a tensor of ids. An empty tensor may have any dtype.
        IndexError: an id on the CPU is out of range.
    """
    ids = integers(plain("ids", ids))
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
        rows: the number of rows of the table.
        order: [rows] the internal row of each user id; None: they are equal.
        first_host_row: the first internal row in host memory.

    Returns:
        The sorted ids; the position of each in `ids`; and int64 [1], the number of ids whose rows
        are below `first_host_row`.
    """
    flat = as_wide_as_rows(ids.flatten(), rows)
    keys = flat.clamp(0, rows - 1)
    keys = keys if order is None else order[keys]
    if rows <= torch.iinfo(torch.int32).max:
        keys = keys.int()  # Sorting int32 moves half the bytes.
    keys, positions = keys.sort()
    host_begin = torch.searchsorted(keys, keys.new_full((1,), first_host_row))
    return flat[positions], positions, host_begin


def as_wide_as_rows(ids: torch.Tensor, rows: int) -> torch.Tensor:
    """Returns the ids, converted to int64 if int32 cannot hold the number of rows."""
    return ids if rows <= torch.iinfo(torch.int32).max else ids.long()


def integers(ids: torch.Tensor) -> torch.Tensor:
    """Returns the ids; an empty tensor as int64, since ``torch.tensor([])`` is float32."""
    if ids.numel() > 0 or ids.dtype in (torch.int32, torch.int64):
        return ids
    return ids.to(torch.int64)


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Raises ValueError unless the argument `name` is on the CPU or on `device`."""
    if tensor.device not in (device, torch.device("cpu")):
        expected = "cpu" if device.type == "cpu" else f"cpu or {device}"
        raise ValueError(f"{name} must be on {expected}, got {tensor.device}")


def check_distinct(name: str, ids: torch.Tensor, count: int, what: str) -> None:
    """Checks that all ids are between 0 and `count` - 1 and differ. Synchronises with a GPU.

    Args:
        name: the name of the argument, for errors.
        ids: [n] int32 or int64. If n is `count`, they must be a permutation.
        count: the upper limit of the ids.
        what: what the ids denote, such as "rows", for errors.

    Raises:
        IndexError: an id is out of range; the error names the first one.
        ValueError: an id repeats an earlier one; the error names the first one.
    """
    bad = (ids < 0) | (ids >= count)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise IndexError(f"{name}[{first}] = {int(ids[first])} is out of range for {count} {what}")
    marks = torch.zeros(count, dtype=torch.bool, device=ids.device)
    marks[ids.long()] = True
    if int(marks.count_nonzero()) == ids.numel():
        return
    ordered, positions = ids.sort(stable=True)
    first = int(positions[1:][ordered[1:] == ordered[:-1]].min())
    raise ValueError(f"{name}[{first}] = {int(ids[first])} repeats an earlier id")
