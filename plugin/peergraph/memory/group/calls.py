"""The collective that a rank is in. Its name and number go with every value, to find mismatches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from peergraph.memory.group.rank_names import RankNames


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called.

    Attributes:
        number: the number of the call among the rank's calls, from 1.
        names: the name of the collective, then the names of the nested collectives in it.
    """

    number: int
    names: tuple[str, ...]

    def encode(self) -> bytes:
        """Encodes the call for :meth:`decode`."""
        return json.dumps([self.number, self.names]).encode()

    @classmethod
    def decode(cls, text: bytes) -> Call:
        """Decodes the result of :meth:`encode`."""
        number, names = json.loads(text)
        return cls(number, tuple(names))

    def __str__(self) -> str:
        return f"{self.names[0]} (call {self.number})"

    def in_full(self) -> str:
        """Formats the call with its nested collectives."""
        return f"{' > '.join(self.names)} (call {self.number})"


class Calls:
    """The collectives that this rank is in, by thread; all threads' calls are numbered together."""

    def __init__(self) -> None:
        self._count = 0
        self._of_thread = threading.local()

    @contextmanager
    def enter(self, name: str) -> Iterator[Call]:
        """Returns a context in which this thread is in a collective of that name. If the thread is
        in a collective already, the new one is nested in it.
        """
        outer: Call | None = getattr(self._of_thread, "call", None)
        if outer is None:
            self._count += 1
            self._of_thread.call = Call(self._count, (name,))
        else:
            self._of_thread.call = Call(outer.number, (*outer.names, name))
        try:
            yield self._of_thread.call
        finally:
            self._of_thread.call = outer


def difference(encoded: Sequence[bytes], names: RankNames) -> str | None:
    """Describes which ranks are in which collectives; None if all are in the same collective."""
    if len(set(encoded)) == 1:
        return None
    calls = [Call.decode(text) for text in encoded]
    same_outside = len({(call.number, call.names[0]) for call in calls}) == 1
    texts = [call.in_full() if same_outside else str(call) for call in calls]
    return describe_callers(dict(enumerate(texts)), names)


def describe_callers(texts: Mapping[int, str], names: RankNames) -> str:
    """Describes which ranks are in which collectives, by rank."""
    callers = [
        f"{names([r for r, other in texts.items() if other == text])} called {text}"
        for text in dict.fromkeys(texts.values())
    ]
    return f"the ranks are in different collectives: {', '.join(callers)}"
