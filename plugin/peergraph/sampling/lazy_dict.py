"""`LazyDict`: a dict whose values are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_EVERY_USE = (
    *("__contains__", "__delitem__", "__eq__", "__ge__", "__getitem__", "__gt__", "__ior__"),
    *("__iter__", "__le__", "__len__", "__lt__", "__ne__", "__or__", "__repr__", "__reversed__"),
    *("__ror__", "__setitem__", "clear", "copy", "get", "items", "keys", "pop", "popitem"),
    *("setdefault", "update", "values"),
)


class LazyDict(dict[Key, Value]):
    """A dict that makes all of its items at its first use, whatever that is.

    A sample of hundreds of relations has thousands of tensors, of which a loader reads few. Copies,
    pickled ones too, are plain dicts.

    Args:
        make: returns the items.
    """

    def __init__(self, make: Callable[[], dict[Key, Value]]) -> None:
        super().__init__()
        self._make: Callable[[], dict[Key, Value]] | None = make

    @property
    def is_made(self) -> bool:
        """Whether the items are there, so that somebody may have changed them."""
        return self._make is None

    def _fill(self) -> None:
        if self._make is not None:
            dict.update(self, self._make())
            self._make = None

    def __reduce_ex__(self, _: Any) -> Any:
        return dict, (dict(self),)


def _after_filling(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    @wraps(method)
    def call(self: LazyDict[Any, Any], *args: Any, **kwargs: Any) -> Any:
        self._fill()
        return method(self, *args, **kwargs)

    return call


for _name in _EVERY_USE:
    setattr(LazyDict, _name, _after_filling(_name))
LazyDict.__hash__ = None  # as a dict
