"""The number of rows of a table on each tier."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tiers:
    """The number of rows on each tier.

    The first rows of a table are replicated on every rank, the next ones are split over the ranks,
    the next ones are in host memory, and the last ones are in a file that all ranks map.
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
        """Returns tiers on which every rank stores all rows."""
        return cls(replicated=rows)

    @classmethod
    def all_sharded(cls, rows: int) -> Tiers:
        """Returns tiers on which each rank stores an equal share of the rows."""
        return cls(sharded=rows)

    @classmethod
    def all_host(cls, rows: int) -> Tiers:
        """Returns tiers on which all rows are in host memory, once per machine."""
        return cls(host=rows)

    @property
    def rows(self) -> int:
        """The number of rows of all tiers."""
        return self.replicated + self.sharded + self.host + self.disk
