"""Nested lists, tuples and dicts of arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

_Part = TypeVar("_Part")


def map_nested(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns nested lists, tuples and dicts with `function` applied to what they hold."""
    kind = type(value)
    if isinstance(value, (tuple, list)):
        parts = [map_nested(part, function) for part in value]
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if kind is dict:
        return {key: map_nested(part, function) for key, part in value.items()}
    return function(value)


def parts_in(value: Any, kind: type[_Part]) -> list[_Part]:
    """Returns what nested lists, tuples and dicts hold of a type, in order."""
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [inner for part in value for inner in parts_in(part, kind)]
    return []


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors of nested lists, tuples and dicts, in order."""
    return parts_in(value, Tensor)


def distinct_tensors(value: Any) -> list[Tensor]:
    """Returns the tensors of nested lists, tuples and dicts in order, each object once."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())
