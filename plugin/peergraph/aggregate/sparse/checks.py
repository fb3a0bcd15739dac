"""Checks of the tensors that structures are made of."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.memory.table.id_list import integers


def check_backward(backward: str, deterministic: bool) -> None:
    """Raises ValueError unless `backward` is known and goes with `deterministic`."""
    if backward not in ("auto", "transpose", "atomic"):
        raise ValueError(f"backward must be 'auto', 'transpose' or 'atomic', got {backward!r}")
    if backward == "atomic" and deterministic:
        raise ValueError("backward='atomic' adds in no fixed order, got deterministic=True")


def check_ids(
    name: str, ids: Tensor, device: torch.device | None = None, count: int | None = None
) -> Tensor:
    """Returns the ids, after checks of all but their values; empty ids may have any dtype.

    Args:
        device, count: the expected device and number of ids; None: any.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(ids).__name__}")
    ids = integers(ids)
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got {list(ids.shape)}")
    if device is not None and ids.device != device:
        raise ValueError(f"{name} must be on {device}, got {ids.device}")
    if count is not None and ids.numel() != count:
        raise ValueError(f"{name} must have {count} items, got {ids.numel()}")
    return ids


def check_size(name: str, size: int) -> None:
    """Raises TypeError or ValueError unless `size` is an integer that is not negative."""
    if not hasattr(size, "__index__"):
        raise TypeError(f"{name} must be an int, got {size!r}")
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {size}")


def check_offsets(indptr: Tensor, num_edges: int, num_nonisolated: int | None) -> None:
    """Raises ValueError unless `indptr` rises from 0 to `num_edges`.

    With `num_nonisolated`, it must have reached `num_edges` at that row. Synchronises.
    """
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != num_edges:
        raise ValueError(f"indptr must run from 0 to {num_edges} edges, got {first} to {last}")
    falling = (indptr[1:] < indptr[:-1]).nonzero()
    if falling.numel():
        raise ValueError(f"indptr must not fall, it does after position {int(falling[0])}")
    if num_nonisolated is not None and int(indptr[num_nonisolated]) != num_edges:
        begun = int(indptr[num_nonisolated])
        raise ValueError(
            f"num_nonisolated is {num_nonisolated}, but later destinations have "
            f"{num_edges - begun} edges"
        )


def check_counts(duplicate_counts: Tensor, num_sources: int, device: torch.device) -> None:
    """Raises TypeError or ValueError unless these are int32 [num_sources] on `device`."""
    check_ids("duplicate_counts", duplicate_counts, device, num_sources)
    if duplicate_counts.dtype != torch.int32:
        raise TypeError(f"duplicate_counts must be int32, got {duplicate_counts.dtype}")


def check_enough_counts(duplicate_counts: Tensor, indices: Tensor) -> None:
    """Raises ValueError for the first source that occurs more often than its count."""
    found = torch.bincount(indices, minlength=duplicate_counts.numel())
    more = (found > duplicate_counts).nonzero()
    if more.numel():
        source = int(more[0])
        raise ValueError(
            f"duplicate_counts[{source}] must be at least {int(found[source])}, as often as the "
            f"source occurs, got {int(duplicate_counts[source])}"
        )


def check_range(name: str, ids: Tensor, limit: int, what: str) -> int:
    """Returns the largest id, or -1 if there is none. Synchronises.

    Raises:
        IndexError: the first id out of range.
    """
    if ids.numel() == 0:
        return -1
    low, high = map(int, torch.aminmax(ids))
    if low >= 0 and high < limit:
        return high
    bad = int(((ids < 0) | (ids >= limit)).nonzero()[0])
    raise IndexError(f"{name}[{bad}] = {int(ids[bad])} is out of range for {limit} {what}")
