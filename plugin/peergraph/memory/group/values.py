"""Values that ranks send each other: pickled, or a marker for a value that cannot be pickled.

Only values of ranks are unpickled: :mod:`peergraph.memory.group.handshake` accepts no other sender.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Unsendable:
    """Stands for a value that cannot be pickled."""

    reason: str


def pack(value: Any) -> tuple[bytes, Exception | None]:
    """Pickles a value; if that fails, returns a marker for the other ranks, and the error."""
    try:
        return pickle.dumps(value), None
    except Exception as error:
        return pickle.dumps(_Unsendable(summary(error))), error


def unpack(data: bytes | memoryview, rank: str) -> Any:
    """Returns the value that a rank packed. Raises RuntimeError if it cannot be unpickled here.

    Args:
        data: the packed value.
        rank: the name of the rank, for errors.
    """
    try:
        value = pickle.loads(data)
    except Exception as error:
        raise RuntimeError(
            f"the value of {rank} cannot be unpickled here: {summary(error)}"
        ) from error
    if isinstance(value, _Unsendable):
        raise RuntimeError(f"{rank} could not send its value: {value.reason}")
    return value


def disagreement(
    arguments: Sequence[Mapping[str, str]], names: Callable[[Sequence[int]], str]
) -> str | None:
    """Describes the first argument that differs between the ranks; None if none does."""
    for name in dict.fromkeys(name for of_rank in arguments for name in of_rank):
        texts = [of_rank.get(name, "missing") for of_rank in arguments]
        if len(set(texts)) > 1:
            values = [
                f"{text} on {names([r for r, other in enumerate(texts) if other == text])}"
                for text in dict.fromkeys(texts)
            ]
            return f"the ranks disagree about {name}: {', '.join(values)}"
    return None


def summary(error: BaseException) -> str:
    """Returns the type and text of an error, as in the last line of a traceback."""
    return "".join(traceback.format_exception_only(type(error), error)).strip()


@dataclass(frozen=True)
class Failure:
    """An exception in a form that can be sent to other ranks."""

    pickled: bytes | None
    """None if unpickling does not restore the exception."""
    summary: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Converts an exception; never fails."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return cls(_pickled(error), summary(error), text)

    def exception(self, rank: str) -> Exception:
        """Returns the exception, or a RuntimeError that names it. Its cause contains the traceback
        of the other rank.

        Args:
            rank: the name of the rank that raised it.
        """
        error: Exception = RuntimeError(f"{rank} raised {self.summary}")
        if self.pickled is not None:
            with suppress(Exception):
                error = pickle.loads(self.pickled)
        error.__cause__ = RuntimeError(f"on {rank}:\n{self.traceback}")
        return error


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = pickle.dumps(error)
        copy = pickle.loads(data)
    except Exception:
        return None
    return data if type(copy) is type(error) and str(copy) == str(error) else None
