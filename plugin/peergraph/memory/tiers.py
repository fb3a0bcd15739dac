"""How many rows of a table lie on which tier."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Tiers:
    """Rows per tier, in this order; None, for one of them, means the rest.

    The first rows are replicated on every rank, the next are dealt to the ranks in turn, the last
    are in the machine's host memory.
    """

    replicated: int | None = 0
    sharded: int | None = 0
    host: int | None = 0

    def __post_init__(self) -> None:
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, count in counts.items():
            if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
                raise TypeError(f"{name} must be an int or None, got {count!r}")
            if count is not None and count < 0:
                raise ValueError(f"{name} must not be negative, got {count}")
        if list(counts.values()).count(None) > 1:
            raise ValueError("only one tier can take the rest of the rows")

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
        """Rows of all tiers. ValueError while one of them is the rest."""
        if self.replicated is None or self.sharded is None or self.host is None:
            raise ValueError(f"{self} has no number of rows before a table gives it one")
        return self.replicated + self.sharded + self.host

    def resolve(self, rows: int) -> Tiers:
        """Returns the tiers of a table of `rows` rows, with numbers only. ValueError if they differ."""
        known = sum(count for count in (self.replicated, self.sharded, self.host) if count)
        rest = rows - known
        tiers = (
            Tiers(
                rest if self.replicated is None else self.replicated,
                rest if self.sharded is None else self.sharded,
                rest if self.host is None else self.host,
            )
            if rest >= 0
            else self
        )
        if rest < 0 or tiers.rows != rows:
            raise ValueError(f"{self} does not add up to the table's {rows} rows")
        return tiers
