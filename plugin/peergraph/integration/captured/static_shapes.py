"""The context in which layers run on batches of a static shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_has_static_shapes: ContextVar[bool] = ContextVar("peergraph_static_shapes", default=False)


@contextmanager
def static_shapes() -> Iterator[None]:
    """In this context, batches have static shapes, and their hops end with padding.

    A CUDA graph cannot repeat a structure whose shape depends on the edges.
    """
    token = _has_static_shapes.set(True)
    try:
        yield
    finally:
        _has_static_shapes.reset(token)


def has_static_shapes() -> bool:
    """Returns whether batches have static shapes at the moment."""
    return _has_static_shapes.get()
