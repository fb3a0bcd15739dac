"""What is known about the ids of a node type, and columns that have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peergraph.store.ingest.graph_files import NodeFiles
from peergraph.store.ingest.id_numbers import IdNumbers, KeyTable
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.ingest.values.ids import IdKind, kind_of_types, to_keys, to_node_numbers
from peergraph.store.ingest.values.problems import Problems
from peergraph.store.ingest.values.text_kind import TextKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PLAUSIBLE_NODES = 1 << 20
_PLAUSIBLE_RATIO = 1000  # of nodes to ends of edges


@dataclass
class NodeIds:
    """The ids of one node type.

    Args:
        node_files: the files of the type.
        count: the number of nodes; None: the edges determine it.
        kind: whether ids are whole numbers or text; None: the first values of edges decide.
        numbers: the numbers of ids that are looked up.
    """

    node_files: NodeFiles
    count: int | None = None
    kind: IdKind | None = None
    numbers: IdNumbers | None = None
    # Of types that only edges name: the largest id and its place, ends, columns of keys.
    largest: int = -1
    largest_place: tuple[str, int] = ("", 0)
    num_ends: int = 0
    keys: list[tuple[KeyTable, str]] = field(default_factory=list)

    @property
    def is_named_by_edges(self) -> bool:
        """Whether edges determine the nodes."""
        return self.count is None and self.numbers is None

    @property
    def is_looked_up(self) -> bool:
        """Whether ids are looked up; otherwise they are the numbers of the nodes."""
        if self.numbers is not None:
            return True
        return self.count is None and (self.kind == "text" or self.node_files.numbering == "mapped")

    def add_numbers(self, ids: NDArray[Any], rows: NDArray[np.int64], source: RowSource) -> None:
        """Notes ids of a type that only edges name, which are the numbers of its nodes."""
        self.num_ends += len(ids)
        if len(ids) and int(ids.max()) > self.largest:
            at = int(ids.argmax())
            self.largest = int(ids[at])
            self.largest_place = source.place(int(rows[at]))

    def count_nodes(self, node_type: str) -> int:
        """Returns the number of nodes that the largest id implies.

        Raises:
            ValueError: it is not plausible.
        """
        count = self.largest + 1
        if count > _PLAUSIBLE_NODES and count > _PLAUSIBLE_RATIO * self.num_ends:
            file, row = self.largest_place
            raise ValueError(
                f"nodes {node_type!r}: the id {self.largest} ({file}: row {row}) implies {count:,} "
                f"nodes, for {self.num_ends:,} ends of edges: give num_nodes if that is right, or "
                "numbering='mapped' if ids are not the numbers of the nodes"
            )
        return count


class IdColumn:
    """A column of ids of one node type.

    Args:
        source: the rows.
        column: the name of the column.
        what: names it in messages, such as ``"the source"``.
        ids: the ids of the node type.

    Raises:
        ValueError: the column has a type that no id has, or of another kind than the nodes' ids.
    """

    def __init__(self, source: RowSource, column: str, what: str, ids: NodeIds) -> None:
        self._column, self._what, self._ids = column, what, ids
        self._where = f"{what} (column {column!r})"
        self._text_kind: TextKind | None = None
        types = source.types(column) if column in source.names else []
        kind = kind_of_types(types, self._where)
        if not ids.is_named_by_edges:
            return
        if ids.node_files.numbering == "dense":
            ids.kind = "number"
        elif kind is not None:
            self._agree(kind)
        elif source.is_text:
            self._text_kind = TextKind(source, self._where)

    def read(self, batch: Batch, problems: Problems) -> Any:
        """Returns the ids of a batch: numbers of nodes ``[n]`` (int32 or int64 of NumPy), or keys
        (an array of Arrow). Rows without an id are added to the problems.

        Raises:
            ValueError: text of several kinds.
        """
        values, found, ids = batch.columns[self._column], Problems(len(batch)), self._ids
        if ids.kind != "number":
            self._decide(values, batch)
        try:
            if ids.is_looked_up:
                keys = to_keys(values, ids.kind or "number", found)
            else:
                keys = to_node_numbers(values, found)
        except ValueError as error:
            raise ValueError(f"{self._where}: {error}") from None
        if found.bad.any():
            self._decide(values, batch)
        problems.add_all(found, self._what)
        return keys

    def _decide(self, values: Any, batch: Batch) -> None:
        """Finds whether text without a declared type is numbers."""
        kind = None if self._text_kind is None else self._text_kind.of(values, batch)
        if kind is not None:
            self._agree(kind)

    def _agree(self, kind: IdKind) -> None:
        known = self._ids.kind
        if known not in (None, kind):
            names = {"number": "whole numbers", "text": "text"}
            raise ValueError(
                f"{self._where}: ids are {names[kind]}, ids of the same node type are "
                f"{names[str(known)]} in another column. Mend the files, or declare the column's "
                f"type: csv=CsvFormat(types={{{self._column!r}: 'string'}})"
            )
        self._ids.kind = kind
