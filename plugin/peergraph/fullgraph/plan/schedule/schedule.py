"""The passes over chunks of an epoch of offloaded training, and the rows that they read and write.

Sources of a layer's sum are read in the order of edges, everything else in the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE, SEQUENTIAL = "source", "sequential"
FEATURES = "features"
BEFORE = -1
"""In place of the number of a pass: before the first epoch."""


@dataclass(frozen=True)
class StoredRows:
    """A value for each node that passes leave for later passes.

    Args:
        name: as printed.
        columns: elements of a row.
        role: "source", read in the order of edges, or "sequential".
        first, last: the passes in which it exists, counted from 0.
        share: of the nodes, how many have such a row.
    """

    name: str
    columns: int
    role: str
    first: int
    last: int
    share: float = 1.0


@dataclass(frozen=True)
class ChunkedPass:
    """One pass over all chunks.

    Args:
        name: as printed.
        reads: names of rows that are read in order.
        sources: names of rows that are read in the order of edges.
        writes: names of rows that are written.
        adds: names of rows that gradients are added to in the order of edges.
        own: names of `sources` of which each destination reads its own row, too (self loops).
        share: of the nodes, how many are destinations.
        working: elements that the computation holds for each destination at its peak.
    """

    name: str
    reads: tuple[str, ...]
    sources: tuple[str, ...]
    writes: tuple[str, ...]
    adds: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    share: float = 1.0
    working: int = 0


@dataclass(frozen=True)
class Schedule:
    """The passes of an epoch, and the rows between them."""

    passes: tuple[ChunkedPass, ...]
    rows: tuple[StoredRows, ...]

    def columns(self, name: str) -> int:
        """Columns of stored rows."""
        return self.find(name).columns

    def find(self, name: str) -> StoredRows:
        """Returns stored rows by name."""
        return next(rows for rows in self.rows if rows.name == name)
