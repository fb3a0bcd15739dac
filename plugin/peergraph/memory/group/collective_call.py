"""Work that every rank must finish before any rank goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from peergraph.memory.group.group import Group
from peergraph.memory.group.values import Failure

T = TypeVar("T")


def collective_call(group: Group, work: Callable[[], T]) -> T:
    """Runs `work` on every rank; if it fails on one, every rank raises that error. Collective.

    An error that cannot be pickled is a RuntimeError with its type and text on the other ranks.
    """
    result: T | None = None
    error: Exception | None = None
    with group.collective("collective_call"):
        try:
            result = work()
        except Exception as caught:
            error = caught
        failures: list[Failure | None] = group.all_gather(error and Failure.of(error))
    if any(failures):
        result = None  # the error's traceback refers to this frame
    if error is not None:
        raise error
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise failure.exception(rank)
    return result  # type: ignore[return-value]
