"""Conditions on rows, and queries that have rows, in DuckDB's SQL."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Sequence
from os.path import abspath, dirname
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.arrow_rows import (
    ArrowRows,
    ParquetRows,
    arrow_reader,
    columns_of,
)
from peergraph.store.ingest.read.optional import arrow
from peergraph.store.ingest.read.row_source import Batch, Problems, RowSource, named_errors
from peergraph.store.ingest.values.arrow_arrays import (
    Mask,
    as_arrow,
    as_mask,
    is_text,
    plain_type,
)
from peergraph.store.ingest.values.numbers import TextKind, text_numbers
from peergraph.store.ingest.workspace import Workspace

_CSV_FILE = re.compile(r"\.(csv|tsv|txt)(\.\w+)?$", re.IGNORECASE)
_PARQUET_FILE = re.compile(r"\.(parquet|pq|parq)$", re.IGNORECASE)
_TYPES = {"all_varchar", "columns"}
"""Arguments by which DuckDB does not guess types of CSV files."""
_COLUMNS = ("$..column_names[0]",)
"""Where the tree of an expression has its columns."""
_NAMES = (
    *("$..table_name", "$..function.function_name", "$..function..column_names[0]", "$..function"),
    *("$..function..text", "$..function..value.value"),  # versions differ
)
"""Where the tree of a query has its tables, table functions, their options, calls and literals."""


class Condition:
    """A condition on the columns of a row, an expression of SQL."""

    def __init__(self, where: str, source: RowSource, workspace: Workspace) -> None:
        self._what = f"where={where!r} is not valid"
        # Neither nothing nor two expressions may stand there.
        self._value = f"(CASE WHEN\n{where}\nTHEN true END)"
        self._workspace, self._source = workspace, source
        (names,) = _parsed(f"SELECT {self._value}", _COLUMNS, self._what, workspace)
        named = {name.lower() for name in names}
        self.columns = [name for name in source.names if name.lower() in named]
        """The columns that it names, whatever their case."""
        if len({name.lower() for name in self.columns}) < len(self.columns):
            shown = ", ".join(map(repr, self.columns))
            raise ValueError(f"{self._what}: names of columns differ by case only: {shown}")
        self._kinds = {
            name: TextKind(source, f"where={where!r}: column {name!r}") for name in self.columns
        }
        # Of all rows: a row must not mean another thing because of the rows next to it.
        with named_errors(self._what):
            self._types = {name: source.type(name) for name in self.columns}
        self._is_checked = False

    def rows(self, batch: Batch) -> Mask:
        """Returns ``[n]`` for which rows of a batch the condition is true. Raises ValueError if
        text of a column without a declared type is a number in one row and none in another.
        """
        arrays = {name: self._array(name, batch) for name in self.columns}
        table = arrow.table(arrays or {"": arrow.nulls(len(batch))})
        with self._workspace.queries(self._what) as cursor:
            if not self._is_checked:
                self._check(cursor, table)
            cursor.register("batch", table)
            chosen = cursor.sql(f"SELECT {self._value} AS chosen FROM batch")
            return as_mask(arrow_reader(chosen).read_all().column("chosen").combine_chunks())

    def _check(self, cursor: Any, table: Any) -> None:
        """Lets DuckDB make an index of the condition, which only expressions of a row may be."""
        name = self._workspace.unique_name("condition")
        cursor.register("batch", table.slice(0, 0))
        cursor.execute(f"CREATE TABLE {name} AS SELECT *, 0 AS {name} FROM batch")
        index = f"CREATE INDEX of_{name} ON {name} ({name}, ({self._value}))"
        cursor.execute(index)
        cursor.execute(f"DROP TABLE {name}")
        self._is_checked = True

    def _array(self, name: str, batch: Batch) -> Any:
        """Returns a column, that of text as numbers where they are numbers: DuckDB would round
        them to the type of a number that they are compared with.
        """
        column, kind = batch.columns[name], self._types[name]
        is_open = arrow.types.is_null(kind)
        if self._source.is_text and is_open and self._kinds[name].of(column, batch) == "text":
            return column
        if self._source.is_text and not is_text(kind):
            problems = Problems(len(column))
            values, missing, _ = text_numbers(column, problems)
            if problems.bad.any():
                value = column[int(problems.bad.argmax())].as_py()
                raise ValueError(f"{self._what}: column {name!r} has {value!r}, which is no number")
            column = as_arrow(values, missing)
        kind = arrow.float64() if self._source.is_text and is_open else kind
        try:
            return column.cast(kind)
        except arrow.ArrowInvalid as error:
            raise ValueError(
                f"{self._what}: column {name!r} has a value that {kind} does not hold ({error}): "
                "declare the type of the column"
            ) from None


def query_rows(query: str, workspace: Workspace) -> RowSource:
    """Returns the rows of a query, which is evaluated once. Raises ValueError if it reads other
    files than those that it names as literals, or CSV files whose types DuckDB would guess.
    """
    what = f"query={query!r} is not valid"
    tables, functions, options, calls, *parts = _parsed(query, _NAMES, what, workspace)
    literals = [name for part in parts for name in part if name]
    untyped = [name for name in tables if _CSV_FILE.search(name)]
    readers = [name for name in functions if "csv" in name.lower()]
    if untyped or len(readers) > sum(name.lower() in _TYPES for name in options):
        raise ValueError(
            f"{what}: DuckDB would guess the types of {(untyped + readers)[0]} from the first "
            "rows: use read_csv(..., all_varchar = true), or columns = {...}"
        )
    for call in calls:
        if '"union_by_name"' not in call:
            _check_types(
                [name for name in literals if json.dumps(name, ensure_ascii=False) in call], what
            )
    for name in tables:
        _check_types([name], what)
    files = [*tables, *literals]
    paths = [path for name in files for path in (glob.glob(name, recursive=True) or [name])]
    # A pattern is looked for in its folder.
    patterns = [name for name in files if re.search(r"[*?\[]", name)]
    folders = sorted({abspath(dirname(re.split(r"[*?\[]", name)[0])) for name in patterns})
    database = workspace.new_database([*paths, *map(abspath, paths)], folders)
    with workspace.queries(what, database):
        reader = arrow_reader(database.sql(query))

    def rows(columns: Sequence[str], _: int) -> Iterator[Any]:
        with workspace.queries(what, database):
            for batch in reader:
                yield batch.select([*columns])
        database.close()

    return RowSource([ArrowRows("the query's result", columns_of(reader.schema), None, rows)])


def _check_types(names: Sequence[str], what: str) -> None:
    """Raises ValueError if Parquet files that are read together have a column of several types:
    DuckDB would convert, and round, its values to the type in the first file.
    """
    types: dict[str, Any] = {}
    paths = [path for name in names for path in sorted(glob.glob(name, recursive=True))]
    for path in filter(_PARQUET_FILE.search, paths if len(paths) > 1 else ()):
        for column, kind in ParquetRows(Path(path)).types.items():
            first, other = types.setdefault(column, (plain_type(kind), path))
            if plain_type(kind) != first:
                raise ValueError(
                    f"{what}: column {column!r} is {first} in {other} and {plain_type(kind)} in "
                    f"{path}: use read_parquet(..., union_by_name = true)"
                )


def _parsed(
    statement: str, places: Sequence[str], what: str, workspace: Workspace
) -> list[list[str]]:
    """Returns the names at some places of a statement's tree. Raises ValueError if it is no SELECT,
    or several statements.
    """
    with workspace.queries(what) as cursor:
        if len(cursor.extract_statements(statement)) != 1:
            raise ValueError(f"{what}: it has several statements")
        error, *names = cursor.execute(
            "SELECT json_extract_string(tree, '$.error_message'), "
            + ", ".join(f"json_extract_string(tree, '{place}')" for place in places)
            + " FROM (SELECT json_serialize_sql(?) AS tree)",
            [statement],
        ).fetchone()
    if error is not None:
        raise ValueError(f"{what}: {error}")
    return list(names)
