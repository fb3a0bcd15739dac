"""Texts by which ranks, or machines, compare what each of them brings."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory.device.digest import digest_tensor

_SHORT = 60  # characters of a value that is shown
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def describe_content(value: Any, device: torch.device | None = None) -> str:
    """Returns a text that differs if two ranks bring other values. Synchronises.

    Tensors and NumPy arrays are compared by dtype, shape and bytes; numbers, texts, and lists, sets
    and dicts of all these by their items; other objects by their type only.

    Args:
        value: what the rank brings.
        device: where tensors are read, piece by piece; None: where they are.
    """
    if isinstance(value, np.ndarray) and (tensor := _as_tensor(value)) is not None:
        value = tensor
    if isinstance(value, Tensor):
        if value.layout in _SPARSE_PARTS:
            parts = [getattr(value, name)() for name in _SPARSE_PARTS[value.layout]]
            return f"{_shape(value)} of {', '.join(describe_content(p, device) for p in parts)}"
        gradient = ", requires_grad" if value.requires_grad else ""
        return f"{_shape(value)}{gradient} (digest {digest_tensor(value, device):016x})"
    if isinstance(value, np.ndarray):
        items = value.tolist() if value.dtype.kind == "O" else [str(value.dtype), value.tobytes()]
        return f"array {list(value.shape)} {_of_items(items, device)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        text = repr(value)
        return text if len(text) <= _SHORT else f"{text[:_SHORT]}... {_digest([text])}"
    if isinstance(value, Mapping):
        items = sorted(
            f"{describe_content(k, device)}: {describe_content(v, device)}"
            for k, v in value.items()
        )
        return f"{_kind(value)} of {len(items)} {_digest(items)}"
    if isinstance(value, Set):
        items = sorted(describe_content(item, device) for item in value)
        return f"{_kind(value)} of {len(items)} {_digest(items)}"
    if isinstance(value, Sequence):
        return f"{_kind(value)} of {len(value)} {_of_items(value, device)}"
    return _kind(value)


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor | None:
    """Returns an array as a tensor; None if torch has no such dtype."""
    if array.dtype.kind not in "biufc" or not array.dtype.isnative:
        return None
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Of mapped files that must not be written: nobody writes them here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        try:
            return torch.from_numpy(array)
        except TypeError:
            return None


def _of_items(items: Sequence[Any], device: torch.device | None) -> str:
    return _digest([describe_content(item, device) for item in items])


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _digest(texts: Sequence[str]) -> str:
    data = "\0".join(texts).encode("utf-8", "surrogatepass")
    return f"(digest {hashlib.blake2b(data, digest_size=8).hexdigest()})"
