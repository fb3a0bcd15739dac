"""Arrays of NumPy, and Arrow's arrays and types in NumPy and torch."""

from __future__ import annotations

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


def as_numpy(column: Any) -> Array:
    """Returns the numbers of an array of Arrow without missing values, on the same memory."""
    # By torch, because NumPy's array would be read-only. to_numpy() imports pandas.
    return np.asarray(torch.utils.dlpack.from_dlpack(column))


def as_mask(column: Any) -> Mask:
    """Returns the booleans of an array of Arrow; False where one is missing."""
    column = column.fill_null(False) if column.null_count else column
    return as_numpy(column.cast(arrow.uint8())).view(np.bool_)


def plain(column: Any) -> Any:
    """Returns an array of Arrow without a dictionary, and all kinds of text as strings."""
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(arrow.string()) if is_text(column.type) else column


def is_text(kind: Any) -> bool:
    """Returns whether values of an Arrow type are strings."""
    return "string" in str(kind)


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
