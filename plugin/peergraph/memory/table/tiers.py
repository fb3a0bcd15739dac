"""How many rows of a table each tier has."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tiers:
    """Rows per tier, in this order.

    The first rows are replicated on every rank, the next are split over the ranks, the next are in
    the machine's host memory, the last in a file that all ranks map.
    """

    replicated: int = 0
    sharded: int = 0
    host: int = 0
    disk: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            count = getattr(self, field.name)
            if not isinstance(count, int) or isinstance(count, bool):
                raise TypeError(f"{field.name} must be an int, got {count!r}")
            if count < 0:
                raise ValueError(f"{field.name} must not be negative, got {count}")

    @classmethod
    def all_replicated(cls, rows: int) -> Tiers:
        """Every rank holds all rows."""
        return cls(replicated=rows)

    @classmethod
    def all_sharded(cls, rows: int) -> Tiers:
        """The ranks hold equal shares."""
        return cls(sharded=rows)

    @classmethod
    def all_host(cls, rows: int) -> Tiers:
        """All rows are in host memory, once per machine."""
        return cls(host=rows)

    @property
    def rows(self) -> int:
        """Rows of all tiers."""
        return self.replicated + self.sharded + self.host + self.disk
