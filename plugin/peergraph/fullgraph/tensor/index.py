"""The index of ``x[...]`` as torch reads it: ranges and numbers first, then masks and ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from peergraph.fullgraph.tensor.arguments import not_implemented

_MOST_IN_A_LIST = 32  # torch takes a shorter list of sequences or ranges for a tuple


class Index(NamedTuple):
    """An index in two steps: ``x[basic][advanced]``."""

    basic: tuple[Any, ...]
    """A number, a range or None (a new dimension) for each dimension: a view in torch."""
    advanced: list[Tensor | None]
    """Masks and ids for each dimension of that view, which give a copy; None: all of it.

    A mask of several dimensions is followed by None for each further one.
    """

    @property
    def is_basic(self) -> bool:
        """Whether the index is the first step alone."""
        return all(part is None for part in self.advanced)

    @property
    def is_alone(self) -> bool:
        """Whether one mask or tensor of ids is the whole second step."""
        return sum(part is not None for part in self.advanced) == 1

    def place_of(self, dim: int) -> int:
        """Returns the place in :attr:`basic` of a dimension of the tensor."""
        return [place for place, part in enumerate(self.basic) if part is not None][dim]

    def dim_of_view(self, place: int) -> int:
        """Returns the dimension of the view that a place of :attr:`basic` becomes."""
        return sum(not isinstance(part, int) for part in self.basic[:place])

    def at(self, dim: int) -> Tensor | None:
        """Returns the mask or the ids that are, among others, of a dimension of the view."""
        for place, part in enumerate(self.advanced):
            if part is not None and place <= dim < place + dims_of(part):
                return part
        return None

    def with_rows(self, place: int, rows: Any) -> tuple[Any, ...]:
        """Returns an index with other rows at a place of :attr:`basic`."""
        parts: list[Any] = []
        dim = end = 0
        for at, part in enumerate(self.basic):
            advanced = None if isinstance(part, int) else self.advanced[dim]
            if at == place:
                parts.append(rows)
            elif dim >= end or isinstance(part, int):
                parts.append(part if advanced is None else advanced)
            if not isinstance(part, int):
                end = max(end, dim + (0 if advanced is None else dims_of(advanced)))
                dim += 1
        return tuple(parts)


def parse_index(index: Any, shape: Sequence[int]) -> Index:
    """Returns an index of a tensor of this shape in two steps.

    Args:
        index: what torch takes: numbers, ranges, None, Ellipsis, lists, masks and ids as tensors,
            partitioned ones among them, or as NumPy arrays; or a tuple of these.

    Raises:
        IndexError: a number or a mask does not fit the shape, or torch takes no such index.
        ValueError: the step of a range is not positive.
        NotImplementedError: an index is a bool without dimensions.
    """
    parts = [_converted(part) for part in _parts_of(index)]
    missing = len(shape) - sum(map(dims_of, parts))
    if missing < 0:
        raise IndexError(f"too many indices for a tensor of {len(shape)} dimensions")
    place = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    rest = [part for part in parts[place:] if part is not Ellipsis]
    parts = [*parts[:place], *[slice(None)] * missing, *rest]
    basic: list[Any] = []
    advanced: list[Tensor | None] = []
    dim = 0
    for part in parts:
        count = dims_of(part)
        if isinstance(part, int):
            basic.append(_checked(part, shape[dim], dim))
        elif isinstance(part, Tensor):
            if part.dtype == torch.bool:
                _check_mask(part, shape, dim)
            basic += [slice(None)] * count
            advanced += [part, *[None] * (count - 1)]
        else:
            basic.append(_checked_range(part, shape[dim]) if part is not None else None)
            advanced.append(None)
        dim += count
    return Index(tuple(basic), advanced)


def dims_of(part: Any) -> int:
    """Returns how many dimensions a part of an index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def first_place(advanced: Sequence[Tensor | None]) -> int:
    """Returns where the dimensions that masks and ids make stand in the result, as in torch."""
    places: list[int] = []
    for place, part in enumerate(advanced):
        if part is not None:
            places += range(place, place + dims_of(part))
    adjacent = places == list(range(places[0], places[-1] + 1))
    return places[0] if adjacent else 0


def _parts_of(index: Any) -> list[Any]:
    if isinstance(index, tuple):
        return list(index)
    is_short = isinstance(index, list) and len(index) < _MOST_IN_A_LIST
    if is_short and any(part is None or part is ... or _is_sequence(part) for part in index):
        return list(index)  # as torch takes it, with a warning
    return [index]


def _is_sequence(part: Any) -> bool:
    return isinstance(part, (Tensor, slice, list, tuple, range, np.ndarray, str))


def _converted(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, (list, tuple, range, np.ndarray)):
        part = torch.as_tensor(part)
        if part.numel() == 0:
            part = part.long()
    if isinstance(part, Tensor):
        if part.dtype == torch.uint8:
            part = part.bool()
        if part.dtype.is_floating_point or part.dtype.is_complex:
            raise IndexError("tensors used as indices must be integers or bool")
        if part.ndim or part.dtype == torch.bool:
            if not part.ndim:
                not_implemented("indexing", "an index is a bool without dimensions")
            return part
        return int(part)
    if isinstance(part, bool):
        not_implemented("indexing", "an index is a bool without dimensions")
    try:
        if isinstance(part, np.bool_):
            raise TypeError
        return operator.index(part)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None, masks and ids are valid indices, "
            f"got {type(part).__name__}"
        ) from None


def _checked(number: int, size: int, dim: int) -> int:
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for dimension {dim} with size {size}")
    return number % size


def _checked_range(rows: slice, size: int) -> slice:
    if rows.step is not None and operator.index(rows.step) <= 0:
        raise ValueError("step must be greater than zero")
    start, stop, step = rows.indices(size)
    return slice(None) if (start, stop, step) == (0, size, 1) else slice(start, stop, step)


def _check_mask(mask: Tensor, shape: Sequence[int], dim: int) -> None:
    if tuple(mask.shape) != tuple(shape[dim : dim + mask.dim()]):
        raise IndexError(
            f"the shape of the mask {list(mask.shape)} at index {dim} does not match the shape of "
            f"the indexed tensor {list(shape)}"
        )
