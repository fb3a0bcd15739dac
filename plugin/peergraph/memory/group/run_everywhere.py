"""Work that every rank must have done before any goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from peergraph.memory.group.group import Group

T = TypeVar("T")


def run_everywhere(group: Group, work: Callable[[], T]) -> T:
    """Runs `work` on every rank; if it fails on one, every rank raises that error. Collective."""
    result: T | None = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    failures = group.all_gather(failure)
    if any(failures):
        result = None  # the error's traceback refers to this frame
    if failure is not None:
        raise failure
    for rank, other in enumerate(failures):
        if other is not None:
            raise other from RuntimeError(f"on rank {rank}")
    return result  # type: ignore[return-value]
