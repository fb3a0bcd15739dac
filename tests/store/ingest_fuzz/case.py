"""One ingest as plain data: what is in the files, how they are written, and the arguments."""

from __future__ import annotations

import datetime
import decimal
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Column:
    """A column of a file: its name, the kind of its values (:mod:`.kinds`), and the values."""

    name: str
    kind: str
    cells: list[Any]


@dataclass
class File:
    """A file, and how it is written (:mod:`.write_files` says which keys there are)."""

    name: str
    columns: list[Column]
    style: dict[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """The number of rows that are written as columns."""
        return len(self.columns[0].cells) if self.columns else 0


@dataclass
class Table:
    """A table: of columns, or of a separate file (``file``), or of a tensor of its values."""

    name: str
    columns: list[str]
    form: str = "column"  # or "list", "pattern", "file", "tensor"
    dtype: str | None = None
    nan: str = "error"
    file: File | None = None


@dataclass
class Rows:
    """The files of a node type or of an edge type, and its arguments."""

    type: Any
    files: list[File]
    form: str = "paths"  # or "glob", "folder", "table", "dataset", "reader", "pandas", "tensor"
    id: str | None = None
    ends: tuple[str, str] | None = None
    numbering: str = "auto"
    num_nodes: int | None = None
    where: tuple[Any, ...] | None = None
    add_reverse: bool = False
    edge_ids: bool = True
    csv: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


@dataclass
class Case:
    """An ingest."""

    nodes: list[Rows]
    edges: list[Rows]
    bad_rows: str = "error"
    memory: int | None = None
    store: str = "store"


def parse(text: str) -> Case:
    """Reads what ``repr`` of a case writes."""
    names = {"nan": float("nan"), "inf": float("inf"), "Decimal": decimal.Decimal}
    kinds = {kind.__name__: kind for kind in (Case, Rows, Table, File, Column)}
    case = eval(text, {"__builtins__": {}}, {**names, **kinds, "datetime": datetime})
    assert isinstance(case, Case)
    return case
