"""Arrays of NumPy, and Arrow's arrays and types in NumPy and torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from peergraph.store.ingest.read.optional import arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Integers: TypeAlias = "NDArray[np.int64]"
Mask: TypeAlias = "NDArray[np.bool_]"


# Arrow's to_numpy(), array() and scalar() import pandas, which takes a second.


def as_numpy(column: Any) -> Array:
    """Returns the numbers of an array of Arrow, on the same memory, or 0 where one is missing."""
    if column.null_count:
        buffers = [None, column.buffers()[1]]
        whole = arrow.Array.from_buffers(column.type, len(column), buffers, offset=column.offset)
        values = as_numpy(whole)
        return np.where(as_mask(column.is_valid()), values, np.zeros((), values.dtype))
    # By torch, because NumPy's array would be read-only.
    return np.asarray(torch.utils.dlpack.from_dlpack(column))


def as_mask(column: Any) -> Mask:
    """Returns the booleans of an array of Arrow; False where one is missing."""
    return as_numpy(column.cast(arrow.uint8())).view(np.bool_)


def as_arrow(values: Array, missing: Mask | None = None) -> Any:
    """Returns numbers or booleans ``[n]`` as an array of Arrow, and which of them are missing; rows
    ``[n, ...]`` as lists of one length.
    """
    if values.ndim > 1:
        items = as_arrow(values.reshape(math.prod(values.shape[:2]), *values.shape[2:]))
        kind = arrow.list_(items.type, values.shape[1])
        return arrow.Array.from_buffers(kind, len(values), [None], children=[items])
    if values.dtype == np.bool_:
        return as_arrow(values.view(np.uint8), missing).cast(arrow.bool_())
    kind, values = arrow.from_numpy_dtype(values.dtype), np.ascontiguousarray(values)
    bits = None if missing is None else arrow.py_buffer(np.packbits(~missing, bitorder="little"))
    return arrow.Array.from_buffers(kind, len(values), [bits, arrow.py_buffer(values)])


def take(values: Any, at: Integers) -> Any:
    """Returns some elements of an array of NumPy or Arrow."""
    return values.take(at if isinstance(values, np.ndarray) else as_arrow(at))


def plain(column: Any) -> Any:
    """Returns an array of Arrow or NumPy as one of Arrow without a dictionary, and all kinds of
    text as strings.
    """
    if isinstance(column, np.ndarray):
        return as_arrow(column)
    kind = plain_type(column.type)
    return column if column.type == kind else column.cast(kind)


def plain_type(kind: Any) -> Any:
    """Returns the type of an array that :func:`plain` returns."""
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return arrow.string() if is_text(kind) else kind


def is_text(kind: Any) -> bool:
    """Returns whether values of an Arrow type are strings."""
    return "string" in str(kind) and not arrow.types.is_nested(kind)


def is_list(kind: Any) -> bool:
    """Returns whether an Arrow type is a list type."""
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def value_type(kind: Any) -> Any:
    """Returns the type of the values of lists and of dictionaries; other types as they are."""
    types = arrow.types
    while is_list(kind) or types.is_dictionary(kind):
        kind = kind.value_type
    return kind


def row_shape(kind: Any) -> tuple[int, ...] | None:
    """Returns the shape of values of an Arrow type; None: lists may differ in length."""
    if not is_list(kind):
        return ()
    inner = row_shape(kind.value_type) if arrow.types.is_fixed_size_list(kind) else None
    return None if inner is None else (kind.list_size, *inner)


def named_type(name: str) -> Any:
    """Returns the type of Arrow with a name. Raises ValueError if there is none."""
    try:
        return arrow.type_for_alias(name)
    except ValueError:
        raise ValueError(f"types: {name!r} is no type of Arrow") from None


def common_type(kinds: Sequence[Any], what: str) -> Any:
    """Returns the type of Arrow that holds the values of several types, one at least. Raises
    ValueError if there is none.
    """
    schemas = [arrow.schema([("", kind)]) for kind in dict.fromkeys(kinds)]
    try:
        return arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        shown = " and ".join(sorted({str(kind) for kind in kinds}))
        raise ValueError(f"{what} is {shown}: convert it to one type") from None
