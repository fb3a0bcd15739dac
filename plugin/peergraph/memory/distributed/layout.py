"""The tables of an exchange of rows."""

from __future__ import annotations

from collections.abc import Sequence

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.routes import Routes
from peergraph.memory.distributed.row_set import RowSet

_MOST_TABLES = 63  # one bit of an int64 each


class Layout:
    """The tables of an exchange, grouped by row set, in the same order on all ranks.

    Args:
        tables: the tables, in the same order on all ranks.
        routes: the ranks that transfer rows.
    """

    def __init__(self, tables: Sequence[DistributedTable], routes: Routes) -> None:
        self.routes = routes
        self.sets = list(dict.fromkeys(table.row_set for table in tables))
        self.tables = {s: [t for t in tables if t.row_set is s] for s in self.sets}
        for rows, of_set in self.tables.items():
            if len(of_set) > _MOST_TABLES:
                raise NotImplementedError(
                    f"{rows.name!r} has {len(of_set)} tables with rows split over machines, and "
                    f"the exchange takes {_MOST_TABLES}: join some, or build with "
                    'machines="replicate"'
                )

    def mask(self, tables: Sequence[DistributedTable], rows: RowSet) -> int:
        """Returns the tables of a row set as bits."""
        of_set = self.tables[rows]
        return sum(1 << bit for bit, t in enumerate(of_set) if any(t is other for other in tables))

    def named(self, rows: RowSet, mask: int) -> list[DistributedTable]:
        """Returns the tables of a row set for which a bit of the mask is set."""
        return [t for bit, t in enumerate(self.tables[rows]) if mask >> bit & 1]
