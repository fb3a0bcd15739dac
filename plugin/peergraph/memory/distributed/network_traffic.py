"""Counts the rows and bytes that the exchange of rows sends over the network."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import asdict, dataclass, fields

from typing_extensions import Self


@dataclass(frozen=True)
class NetworkTraffic:
    """The traffic of one rank with ranks of other machines since its store was built.

    A row that several ranks of a machine want in the same round counts once: at the rank that
    receives it for the machine.

    Args:
        batches: number of batches for which this rank asked for rows.
        ids_sent: number of rows that this rank asked other machines for.
        ids_received: number of rows that other machines asked this rank for.
        rows_sent, rows_received: number of rows, counted once for each table.
        bytes_sent, bytes_received: bytes of headers, ids and rows.
        local_bytes: bytes of ids and rows that this rank sent to ranks of its own machine.
    """

    batches: int = 0
    ids_sent: int = 0
    ids_received: int = 0
    rows_sent: int = 0
    rows_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    local_bytes: int = 0

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))

    def __sub__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]
        return type(self)(*(getattr(self, name) - getattr(other, name) for name in names))

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in asdict(self).items())


class TrafficCounter:
    """Adds up traffic; threads may count at the same time."""

    def __init__(self) -> None:
        # A garbage collection in `add` may leave a session, which counts too.
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        """Adds numbers to fields of :class:`NetworkTraffic`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    @property
    def total(self) -> NetworkTraffic:
        """The traffic so far."""
        with self._lock:
            return NetworkTraffic(**self._counts)
