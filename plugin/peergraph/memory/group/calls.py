"""Which collective a rank is in: sent along with every value, so that ranks cannot mix them up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A collective that a rank has called: its number among the rank's calls, counted from 1, its
    name, and behind it the names of the collectives within it that the rank is in."""

    number: int
    names: tuple[str, ...]

    def encode(self) -> bytes:
        """For :meth:`decode`."""
        return json.dumps([self.number, self.names]).encode()

    @classmethod
    def decode(cls, text: bytes) -> Call:
        """What :meth:`encode` gave."""
        number, names = json.loads(text)
        return cls(number, tuple(names))

    def __str__(self) -> str:
        return f"{self.names[0]} (call {self.number})"

    def in_full(self) -> str:
        """With the collectives within it."""
        return f"{' > '.join(self.names)} (call {self.number})"


class Calls:
    """The collectives that this rank is in: each thread its own, all numbered together."""

    def __init__(self) -> None:
        self._count = 0
        self._own = threading.local()

    @contextmanager
    def enter(self, name: str) -> Iterator[Call]:
        """Within the context this thread is in that collective, too."""
        outer: Call | None = getattr(self._own, "call", None)
        if outer is None:
            self._count += 1
            self._own.call = Call(self._count, (name,))
        else:
            self._own.call = Call(outer.number, (*outer.names, name))
        try:
            yield self._own.call
        finally:
            self._own.call = outer


def difference(encoded: Sequence[bytes]) -> str | None:
    """What is wrong where the ranks, in order, are not all in the same collective."""
    if len(set(encoded)) == 1:
        return None
    calls = [Call.decode(text) for text in encoded]
    same_outside = len({(call.number, call.names[0]) for call in calls}) == 1
    texts = [call.in_full() if same_outside else str(call) for call in calls]
    callers = [
        f"{name_ranks([r for r, other in enumerate(texts) if other == text])} called {text}"
        for text in dict.fromkeys(texts)
    ]
    return f"the ranks are in different collectives: {', '.join(callers)}"


def name_ranks(ranks: Sequence[int]) -> str:
    """As in "rank 1" and "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
