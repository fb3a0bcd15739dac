"""Work that every rank must finish before any rank goes on."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from peergraph.errors import PeerLostError
from peergraph.memory.group.group import Group
from peergraph.memory.group.machines import MachineFailedError
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
            raise failure.exception(group.names([rank]))
    return result  # type: ignore[return-value]


def collective_call_machines(group: Group, work: Callable[[], T]) -> T:
    """As :func:`collective_call`, over the ranks of all machines. Collective.

    On the other machines an exception of Python's own has its type and text; any other is a
    RuntimeError with its type and text.
    """
    if group.machines.count == 1:
        return collective_call(group, work)
    result: T | None = None
    error: Exception | None = None
    try:
        result = collective_call(group, work)
    except PeerLostError:
        raise
    except MachineFailedError as failed:
        # Came in the place of a value that `work` waited for: this exchange is over.
        raise _error_of(failed, group) from None
    except Exception as caught:
        error = caught
    failures = group.all_gather_results(error and MachineFailedError.encode(error))
    if error is not None:
        result = None
        raise error
    failed_elsewhere = MachineFailedError.find(failures)
    if failed_elsewhere is not None:
        raise _error_of(failed_elsewhere, group)
    return result  # type: ignore[return-value]


def _error_of(failed: MachineFailedError, group: Group) -> Exception:
    machine, kind, text = group.machines.describe(failed.machine), failed.kind, failed.text
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        with suppress(TypeError):  # some take other arguments
            return found(f"on {machine}: {text}")
    return RuntimeError(f"on {machine}: {kind}: {text}")
