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
    """Runs `work` on every rank. If it fails on one rank, every rank raises that error. Collective.

    If the error cannot be pickled, the other ranks raise a RuntimeError with its type and text.
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
    """Does the same as :func:`collective_call`, over the ranks of all machines. Collective.

    The other machines raise an exception of the same type and text if the type is built into
    Python, else a RuntimeError with the type and text.
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
        # Another machine sent its error instead of the value that `work` waited for: the exchange
        # is over.
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
    error_type = getattr(builtins, kind, None)
    if isinstance(error_type, type) and issubclass(error_type, Exception):
        with suppress(TypeError):  # some types take other arguments
            return error_type(f"on {machine}: {text}")
    return RuntimeError(f"on {machine}: {kind}: {text}")
