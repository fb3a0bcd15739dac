"""Ranges of rows, which are views in torch: copies here that follow their tensor and are followed.

The rows of a range do not lie side by side in this rank's memory, so that they are copied. What is
written into the copy is written into the tensor at once, and the other way round. The memory knows
which copies there are of it: all tensors that share it, such as ``x.data`` and ``x[:, 2]``, take
part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import not_implemented


class _Source:
    """Where the rows of a copy come from, kept by the memory of the copy.

    Args:
        local: the rows of the tensor.
        dim: the dimension of rows.
        rows: [copied rows] int64, of `local`.
        shape, strides: of the copy.
    """

    def __init__(
        self, local: Tensor, dim: int, rows: Tensor, shape: torch.Size, strides: Sequence[int]
    ) -> None:
        self.local, self.dim, self.rows = local, dim, rows
        self.shape, self.strides = shape, strides

    def copy_of(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns all of the copy, whose memory is given."""
        empty = torch.empty(0, dtype=self.local.dtype, device=self.local.device)
        copy: Tensor = empty.set_(storage, 0, self.shape, self.strides)
        return copy


def copied_rows(
    local: Tensor, dim: int, rows: Tensor, shape: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """Returns rows of plain local ones, as a copy that follows them and that they follow.

    Args:
        local: [..., rows, ...].
        dim: the dimension of rows.
        rows: int64, each once.
        shape, strides: of torch's view of the rows of all ranks.
    """
    local_shape = [*local.shape[:dim], len(rows), *local.shape[dim + 1 :]]
    copy = as_view(local.index_select(dim, rows), local_shape, shape, strides)
    memory = copy.untyped_storage()
    source = _Source(local, dim, rows, copy.shape, copy.stride())
    memory.rows_of = source  # type: ignore[attr-defined]
    whole = local.untyped_storage()
    copies = [other for other in getattr(whole, "row_copies", ()) if other() is not None]
    whole.row_copies = [*copies, ref(memory)]  # type: ignore[attr-defined]
    return copy


def as_view(
    values: Tensor, local_shape: Sequence[int], shape: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """Returns values in memory of their own that is contiguous where torch's view is.

    Functions such as `contiguous` and `reshape` then copy what they copy in torch, so that writes
    into their results reach as much as there.

    Args:
        values: of `local_shape`, equal to `shape` in all dimensions but one.
        shape, strides: of torch's view of the rows of all ranks.
    """
    result = [0] * len(shape)
    end = inner_end = 1  # of what is inside of a dimension: here, and in torch
    # What is repeated in the same memory comes last; here it has memory for each time.
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim] or math.inf, -dim))
    for dim in order:
        result[dim] = end
        if shape[dim] != 1:
            result[dim] += strides[dim] != inner_end  # a gap
            inner_end = strides[dim] * shape[dim]
            end = result[dim] * max(local_shape[dim], 1)
    if result == list(values.stride()):
        return values
    return values.new_empty_strided(list(local_shape), result).copy_(values)


def changes_of(local: Tensor) -> list[int]:
    """Returns the number of changes of a tensor's memory, in a list that all changes count up."""
    whole = local.untyped_storage()
    if not hasattr(whole, "row_changes"):
        whole.row_changes = [0]  # type: ignore[attr-defined]
    changes: list[int] = whole.row_changes  # type: ignore[attr-defined]
    return changes


def follow_change(local: Tensor) -> None:
    """Copies changed rows of this rank to the tensors that share them."""
    memory: Any = local.untyped_storage()
    notes = memory.__dict__
    if notes:
        _follow(memory, None)


def _follow(memory: Any, origin: Any) -> None:
    notes = memory.__dict__
    for other, reason in notes.get("frozen_by", ()):
        if other() is not None:
            not_implemented("assignment", reason)
    if "row_changes" in notes:
        notes["row_changes"][0] += 1
    if "write_rows" in notes:
        notes["write_rows"]()
    source: _Source | None = notes.get("rows_of")
    if source is not None:
        above = source.local.untyped_storage()
        if above is not origin:
            source.local.index_copy_(source.dim, source.rows, source.copy_of(memory))
            _follow(above, memory)
    for reference in notes.get("row_copies", ()):
        below = reference()
        if below is not None and below is not origin:
            part: _Source = below.rows_of
            torch.index_select(part.local, part.dim, part.rows, out=part.copy_of(below))
            _follow(below, memory)


def refuse_writes(local: Tensor, copy: Tensor, reason: str) -> None:
    """Lets writes into either of two tensors raise NotImplementedError while both are in use.

    Args:
        local, copy: local rows, and a copy of them that stands for a view.
        reason: what cannot be done.
    """
    memories: Any = local.untyped_storage(), copy.untyped_storage()
    for memory, other in (memories, memories[::-1]):
        present = [pair for pair in getattr(memory, "frozen_by", ()) if pair[0]() is not None]
        memory.frozen_by = [*present, (ref(other), reason)]
