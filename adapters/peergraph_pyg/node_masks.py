"""Ids and masks of nodes, in the forms in which scripts have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.store import NODE


def without_bools_as_ids(name: str, values: Any) -> Any:
    """Makes tensors of masks that are arrays or lists, which PyG would take for ids 0 and 1.

    Args:
        name: of the argument, for errors.
        values: a tensor, an array (a series of pandas, too), a list, or anything else, which is
            returned.

    Raises:
        TypeError: bools among ids, or an array of other values.
    """
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "__array__"):
        array = np.asarray(values)
        if array.size and array.dtype.kind not in "biu":
            raise TypeError(f"{name} must be ids or a mask, got an array of {array.dtype}")
        array = array if array.size else array.astype(np.int64)
        return torch.as_tensor(array) if array.dtype == np.bool_ else array
    if not isinstance(values, (list, tuple)):
        return values
    bools = [isinstance(leaf, (bool, np.bool_)) for leaf in _leaves(values)]
    if not any(bools):
        return values
    if not all(bools):
        raise TypeError(f"{name} must be ids or a mask, got a list of both")
    return torch.as_tensor(np.asarray(values))


def is_mask(values: Any) -> bool:
    """Returns whether these are a mask: a tensor of bools."""
    return isinstance(values, Tensor) and values.dtype == torch.bool


def check_mask(name: str, values: Any, count: int, node_type: str = NODE) -> None:
    """Raises ValueError if a mask has not one element for each of `count` nodes."""
    if is_mask(values) and values.shape != (count,):
        of_type = "" if node_type == NODE else f" of type {node_type!r}"
        raise ValueError(
            f"{name}: the mask must have one element for each of {count} nodes{of_type}, has shape "
            f"{tuple(values.shape)}"
        )


def to_ids(name: str, values: Any, count: int, node_type: str = NODE) -> Tensor:
    """Returns ids as a tensor; of a mask, the ids that it selects. Raises as the others do."""
    ids = torch.as_tensor(without_bools_as_ids(name, values))
    check_mask(name, ids, count, node_type)
    return ids.nonzero().view(-1) if is_mask(ids) else ids


def _leaves(values: Any) -> Iterator[Any]:
    """Yields the elements of nested lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value
