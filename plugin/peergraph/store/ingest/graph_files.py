"""The classes by which users describe the files of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

import torch

from peergraph.number_arguments import check_number
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.placement.items import type_name

NanPolicy = Literal["error", "keep", "zero"]
Numbering = Literal["auto", "dense", "mapped"]

_NAN = ("error", "keep", "zero")
_NUMBERINGS = ("auto", "dense", "mapped")
STYPES = (
    *("numerical", "categorical", "timestamp", "embedding"),
    *("multicategorical", "text_tokenized", "sequence_numerical"),
)
"""The semantic types of columns, by PyTorch Frame's names."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of CSV files.

    Args:
        delimiter: the character between values; default: a tab in ``.tsv`` files, else a comma.
        header: whether the first line has the names of the columns; otherwise they are ``f0``,
            ``f1`` and so on. Default: the first line is a header if it has the names of columns
            that the other arguments name, if it has no number and numbers follow, or if it has
            usual names of ends such as ``src,dst``. It is an error if it may be either.
        skip_rows: the number of lines before the header or the first row.
        types: Arrow's names of types by column, such as ``{"id": "string"}``. Values are read as
            text. By default, ids are whole numbers if all of them are, and text if none is a
            number; tables have the dtype that holds all values of all files.
    """

    delimiter: str | None = None
    header: bool | None = None
    skip_rows: int = 0
    types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self, delimiter=_TEXT, header=_FLAG, types=Mapping)
        character = "," if self.delimiter is None else self.delimiter
        if len(character) != 1 or not character.isascii() or character in '"\r\n\0':
            raise ValueError(
                "delimiter must be one character of ASCII, no quotation mark and no end of a line, "
                f"got {self.delimiter!r}"
            )
        check_number("skip_rows", self.skip_rows, 0)
        if not all(isinstance(text, str) for item in self.types.items() for text in item):
            raise ValueError(f"types must be names of types by column, got {self.types!r}")


@dataclass(frozen=True)
class Columns:
    """A table made of columns of the files of its node or edge type.

    Args:
        columns: a name: the table has one value per row (``[rows]``), or ``[rows, width]`` if the
            column has lists. Or a pattern such as ``"f*"``, or a list of names: the table is
            ``[rows, number of columns]``; the columns of a pattern are in the order of the file.
        dtype: dtype of the table; default: the dtype that holds the values of all files. Numbers
            with decimals in CSV files are float32. A value that the dtype cannot hold (a whole
            number that would be rounded, a number that would be infinite) is a bad row.
        nan: the treatment of missing values and NaN: ``"error"`` (they are bad rows), ``"keep"``
            (they are NaN) or ``"zero"``.
    """

    columns: str | Sequence[str]
    dtype: torch.dtype | str | None = None
    nan: NanPolicy = "error"

    def __post_init__(self) -> None:
        _check(self, nan=_NAN)


@dataclass(frozen=True)
class Rows:
    """A table in a separate file, or in memory.

    Args:
        values: a path of a ``.npy`` file, ``archive.npz:name``, a tensor or an array of NumPy, of
            ``[rows, ...]``; or other files, as in :class:`NodeFiles`: all of their columns,
            ``[rows, columns]``. Row ``i`` belongs to row ``i`` of the node or edge type's files, or
            to node or edge ``i`` if it has no files.
        dtype: dtype of the table; default: the dtype of the values.
        nan: as in :class:`Columns`.
        csv: the format of CSV files.
    """

    values: Any
    dtype: torch.dtype | str | None = None
    nan: NanPolicy = "error"
    csv: CsvFormat = field(default_factory=CsvFormat)

    def __post_init__(self) -> None:
        _check(self, nan=_NAN)


Table = Columns | Rows | str | PathLike[str] | Sequence[str] | Any
"""Shorter forms: the name of a column, a pattern or a list of names stand for :class:`Columns`; a
name that ends in ``.npy``, a path, a tensor or an array for :class:`Rows`."""


@dataclass(frozen=True)
class NodeFiles:
    """The nodes of one type. Without any file, the nodes are the ids that edges name.

    Args:
        files: paths, globs or folders of Parquet or CSV files, or an object that provides Arrow
            record batches (a table, a dataset, a reader). Rows are in the order of the list; the
            files of a glob are in the order of their names.
        id: the column of ids. Without it, row ``i`` is node ``i``.
        numbering: ``"dense"``: ids are the node numbers, ``0 .. num_nodes - 1``. ``"mapped"``: ids
            are strings or any integers; nodes are numbered in the order of the rows (without files:
            of the ids), and edges' ids are looked up. ``"auto"``: dense if the ids are the integers
            from 0 on in any order, else mapped.
        num_nodes: the number of nodes, if no file determines it; default: the largest id plus one.
        tables: the tables by name, see :data:`Table`.
        where: a condition on the columns of a row, an expression of SQL (DuckDB) without
            subqueries, aggregates or functions such as ``random()``; rows that do not satisfy it
            are left out.
        query: a SELECT of DuckDB instead of `files`, for joins; ORDER BY determines the order of
            rows. It reads the Parquet, CSV and JSON files that it names as literals.
        csv: the format of CSV files.
    """

    files: Any = None
    id: str | None = None
    numbering: Numbering = "auto"
    num_nodes: int | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    where: str | None = None
    query: str | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)

    def __post_init__(self) -> None:
        _check(self, numbering=_NUMBERINGS, id=_TEXT)
        _check_options(self)
        check_number("num_nodes", self.num_nodes, 0)
        has_rows = self.files is not None or self.query is not None
        if not has_rows and self.id is not None:
            raise ValueError("id names a column of files: give files or query, too")


@dataclass(frozen=True)
class EdgeFiles:
    """The edges of one type.

    Args:
        files: as in :class:`NodeFiles`; also ``.npy`` files, ``archive.npz:name``, a tensor or an
            array of shape ``[2, E]`` (sources, destinations) or ``[E, 2]`` (columns ``"0"``,
            ``"1"``).
        source, destination: names of the columns; default: the first two, unless another one has a
            name as "source" or "dst".
        tables: the tables by name, see :data:`Table`. Edges are numbered in the order of the rows.
        where, query, csv: as in :class:`NodeFiles`.
        add_reverse: whether every edge is followed by its reverse, with the same row of each table
            (as in OGB's `add_inverse_edge`); the edge type must lead from a node type to itself.
        edge_ids: whether edge ids are the numbers of the edges in the files. Otherwise an edge's id
            is its position in the CSC, which saves 4 or 8 bytes per edge; then there can be no
            tables.
    """

    files: Any = None
    source: str | None = None
    destination: str | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    where: str | None = None
    query: str | None = None
    csv: CsvFormat = field(default_factory=CsvFormat)
    add_reverse: bool = False
    edge_ids: bool = True

    def __post_init__(self) -> None:
        _check(self, source=_TEXT, destination=_TEXT, add_reverse=bool, edge_ids=bool)
        _check_options(self)
        if self.files is None and self.query is None:
            raise ValueError("EdgeFiles needs files or query")
        if (self.source is None) != (self.destination is None):
            raise ValueError("source and destination go together: give both or none")
        if not self.edge_ids and self.tables:
            raise ValueError(f"edge_ids=False goes without tables, got {', '.join(self.tables)}")


@dataclass(frozen=True)
class TableFiles:
    """A table of a database: its rows are nodes, its foreign keys edges, and its other columns the
    frame ``"tf"`` of its nodes.

    Args:
        files: paths, globs or folders of Parquet files.
        key: the column of the primary key, if others refer to it.
        foreign_keys: the table to whose key a column refers, by column. Rows without a value,
            or with NaN, have no edge. Edge types are ``(table, "f2p_<column>", other table)``
            and, reversed, ``(other table, "rev_f2p_<column>", table)``.
        time: a column of times or dates, which the table ``"time"`` has in seconds since 1970.
        stypes: the semantic type by column, of PyTorch Frame's names; None leaves the column out.
            Default, by Arrow's type: numbers are ``"numerical"``, text and truth values
            ``"categorical"``, times and dates ``"timestamp"``; lists of text
            ``"multicategorical"``, of integers ``"text_tokenized"`` (as ``input_ids``), of floats
            ``"embedding"``; lists of numbers may be ``"sequence_numerical"``.

    Example:
        >>> tables = {"user": TableFiles("users.parquet", key="id")}
        >>> tables["order"] = TableFiles("orders/", foreign_keys={"user_id": "user"}, time="at")
        >>> Store.ingest("store", tables=tables)
    """

    files: Any
    key: str | None = None
    foreign_keys: Mapping[str, NodeType] = field(default_factory=dict)
    time: str | None = None
    stypes: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self, key=_TEXT, time=_TEXT, foreign_keys=Mapping, stypes=Mapping)
        paths = [self.files] if isinstance(self.files, (str, PathLike)) else self.files
        is_list = isinstance(paths, Sequence)
        if not is_list or not all(isinstance(path, (str, PathLike)) for path in paths):
            raise ValueError(f"files of a table must be paths, got {type(self.files).__name__}")
        for column, stype in self.stypes.items():
            if stype is not None and stype not in STYPES:
                choices = ", ".join(STYPES)
                raise ValueError(
                    f"stypes: {column!r} must be one of {choices} or None, got {stype!r}"
                )


@dataclass(frozen=True)
class GraphFiles:
    """The files of a graph, by node type and edge type, and the tables of a database."""

    nodes: Mapping[NodeType, NodeFiles] = field(default_factory=dict)
    edges: Mapping[EdgeType, EdgeFiles] = field(default_factory=dict)
    tables: Mapping[NodeType, TableFiles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.nodes and not self.edges and not self.tables:
            raise ValueError("no files: give source, nodes, edges or tables")
        types: list[Any] = [*self.nodes.values(), *self.edges.values()]
        readers = [id(t.files) for t in types if hasattr(t.files, "read_next_batch")]
        if len(set(readers)) < len(readers):
            raise ValueError("a reader of record batches is read once, and given for two types")
        for edge_type, edges in self.edges.items():
            names = edge_type if isinstance(edge_type, tuple) else ()
            if len(names) != 3 or not all(isinstance(name, str) for name in names):
                raise ValueError(
                    f"an edge type is (source type, relation, destination type), got {edge_type!r}"
                )
            if edges.add_reverse and edge_type[0] != edge_type[2]:
                raise ValueError(
                    f"edges {type_name(edge_type)}: add_reverse needs one node type; give the "
                    "reverse edges a type of their own"
                )


def _check(options: Any, **kinds: Any) -> None:
    """Raises ValueError for a field that is none of some types or values."""
    for name, kind in kinds.items():
        value = getattr(options, name)
        is_right = value in kind if isinstance(kind, tuple) else isinstance(value, kind)
        if not is_right:
            what = f"one of {', '.join(kind)}" if isinstance(kind, tuple) else _KINDS[kind]
            raise ValueError(f"{name} must be {what}, got {value!r}")


def _check_options(options: NodeFiles | EdgeFiles) -> None:
    _check(options, query=_TEXT, where=_TEXT, csv=CsvFormat, tables=Mapping)
    if options.files is not None and options.query is not None:
        raise ValueError(f"{type(options).__name__} takes files or query, not both")
    if options.query is not None and options.where is not None:
        raise ValueError("where goes with files: write the condition into query")


_TEXT, _FLAG = str | None, bool | None
_KINDS: dict[Any, str] = {
    _TEXT: "a string",
    _FLAG: "True or False",
    bool: "True or False",
    CsvFormat: "a CsvFormat",
    Mapping: "a mapping by name",
}
