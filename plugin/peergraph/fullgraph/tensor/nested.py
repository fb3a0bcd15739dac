"""Nested lists, tuples and dicts of arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def map_nested(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns nested lists, tuples and dicts with `function` applied to what they hold."""
    kind = type(value)
    if isinstance(value, (tuple, list)):
        parts = [map_nested(part, function) for part in value]
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)
    if kind is dict:
        return {key: map_nested(part, function) for key, part in value.items()}
    return function(value)


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors of nested lists, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_in(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors_in(part)]
    return []


def distinct_tensors(value: Any) -> list[Tensor]:
    """Returns the tensors of nested lists, tuples and dicts in order, each object once."""
    return list({id(tensor): tensor for tensor in tensors_in(value)}.values())
