"""Conditions and queries in DuckDB's SQL: what they may do, and their rows."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from os.path import abspath, dirname
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from peergraph.store.ingest.read.arrow_rows import StreamRows
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.row_source import RowSource
from peergraph.store.ingest.values.numbers import Problems
from peergraph.store.ingest.values.text import text_numbers
from peergraph.store.ingest.workspace import Workspace, arrow_reader, translated_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXPRESSIONS = {
    *("COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CASE"),
    *("CAST", "BETWEEN", "COLLATE", "LAMBDA", "LAMBDA_REF", "TYPE"),
}
_READERS = {"read_parquet", "parquet_scan", "read_csv", "read_csv_auto", "read_json"}
_READERS |= {"read_json_auto", "read_ndjson", "read_ndjson_auto"}
_GENERATORS = {"range", "generate_series", "unnest"}
_TYPES_OF_CSV = {"all_varchar", "columns", "types", "dtypes", "column_types"}
_PLAIN = {"type", "select_list", "from_table", "cte_map", "aggregate_handling"}
"""What any SELECT has."""


class Condition:
    """A condition on the columns of a row.

    Args:
        where: an expression of SQL.
        source: the rows.
        types: users' names of types of Arrow by column.
        workspace: the workspace, whose database evaluates the condition.

    Raises:
        ValueError: it is no expression of the columns of one row.
    """

    def __init__(
        self, where: str, source: RowSource, types: Mapping[str, str], workspace: Workspace
    ) -> None:
        self._where, self._workspace = where, workspace
        self._names = {name.lower(): name for name in source.names}
        columns: set[str] = set()
        node = _parsed(f"SELECT (\n{where}\n)", f"where={where!r}", workspace)
        clauses = {name: value for name, value in node.items() if name not in _PLAIN and value}
        if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or clauses:
            self._refuse("it has clauses of a SELECT")
        if node["from_table"]["type"] != "EMPTY":
            self._refuse("it reads a table")
        self._check(node["select_list"], columns, set())
        self.columns = [name for name in source.names if name in columns]
        """The columns that it names."""
        # Of text: whether the values of a column are numbers, by their declared type or the first.
        self._numbers = {name: "string" not in kind for name, kind in types.items()}
        self._is_text, self._declared = source.is_text, set(types)

    def rows(self, columns: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Returns ``[n]`` for which rows of a batch the condition is true."""
        arrow = require("pyarrow", "conditions")
        compute = require("pyarrow.compute", "conditions")
        arrays = {name: self._array(name, columns[name]) for name in self.columns}
        if not arrays:
            arrays = {"": arrow.nulls(len(next(iter(columns.values()))))}
        table = arrow.table(arrays)
        with self._workspace.queries(f"where={self._where!r} is not valid") as cursor:
            cursor.register("rows", table)
            chosen = cursor.sql(f"SELECT CAST((\n{self._where}\n) AS BOOLEAN) AS chosen FROM rows")
            column = arrow_reader(chosen).read_all().column("chosen")
        return np.asarray(compute.fill_null(column, False).to_numpy())

    def _array(self, name: str, column: Any) -> Any:
        arrow = require("pyarrow", "conditions")
        if isinstance(column, Tensor):
            column = column.numpy()
        if isinstance(column, np.ndarray):
            return arrow.array(column)
        if not self._is_text or self._numbers.get(name) is False:
            return column
        # Text that is compared with a number would be rounded to the number's type.
        problems = Problems()
        values, missing = text_numbers(column, problems)
        if missing is not None and missing.all():
            return arrow.nulls(len(column), arrow.int64())
        bad = problems.any(len(column))
        empty = np.zeros(len(column), np.bool_) if missing is None else missing
        is_number = not (bad | empty).all() if bad.any() else True
        known = self._numbers.setdefault(name, is_number)
        if known and name not in self._declared:
            bad |= _has_zeros(column)
        if known and bad.any():
            value = column[int(bad.argmax())].as_py()
            raise ValueError(
                f"where={self._where!r}: column {name!r} has numbers and {value!r}: give its type "
                "by csv=CsvFormat(types=...) or clean the file"
            )
        return arrow.array(values, mask=missing) if known else column

    def _check(self, node: Any, columns: set[str], lambdas: set[str]) -> None:
        """Checks an expression, and collects the columns that it names."""
        if isinstance(node, list):
            for child in node:
                self._check(child, columns, lambdas)
            return
        if not isinstance(node, dict):
            return
        kind = node.get("class")
        if kind is not None and kind not in _EXPRESSIONS:
            self._refuse(f"it has a {kind.lower().replace('_', ' ')}")
        if kind == "COLUMN_REF":
            name = node["column_names"][0]
            if name in lambdas:
                return
            if name.lower() not in self._names:
                self._refuse(f"there is no column {name!r}; columns: {', '.join(self._names)}")
            columns.add(self._names[name.lower()])
        if kind == "FUNCTION":
            self._check_function(node["function_name"])
        if kind == "LAMBDA":
            lambdas = lambdas | _names_of(node.get("lhs")) | set(node.get("named_parameters", ()))
        for name, child in node.items():
            if not (kind == "LAMBDA" and name == "lhs"):
                self._check(child, columns, lambdas)

    def _check_function(self, name: str) -> None:
        with self._workspace.queries("conditions") as cursor:
            kinds = cursor.execute(
                "SELECT DISTINCT function_type, stability, macro_definition "
                "FROM duckdb_functions() WHERE function_name = ?",
                [name.lower()],
            ).fetchall()
        if not kinds:
            self._refuse(f"there is no function {name!r}")
        for kind, stability, macro in kinds:
            if kind == "macro" and macro is not None:
                node = _parsed(f"SELECT ({macro})", f"where={self._where!r}", self._workspace)
                for called in _functions_of(node):
                    if called != name.lower():
                        self._check_function(called)
            elif kind != "scalar" or stability != "CONSISTENT":
                self._refuse(f"the value of {name}() is not one of a row")

    def _refuse(self, reason: str) -> None:
        raise ValueError(
            f"where={self._where!r} is not valid: {reason}. It must be an expression of the "
            "columns of one row"
        )


def _has_zeros(column: Any) -> NDArray[np.bool_]:
    """Returns which strings are whole numbers with zeros before the first digit."""
    compute = require("pyarrow.compute", "conditions")
    found = compute.match_substring_regex(column, r"^\s*-?0[0-9]+\s*$")
    return np.asarray(compute.fill_null(found, False).to_numpy(zero_copy_only=False))


def query_rows(query: str, workspace: Workspace) -> RowSource:
    """Returns the rows of a query, which is evaluated once.

    Raises:
        ValueError: it is no SELECT, or it reads other than files that it names.
    """
    what = f"query={query!r} is not valid"
    node = _parsed(query, what, workspace)
    files: list[str] = []
    _check_query(node, what, files, set())
    expanded = [path for name in files for path in (glob.glob(name, recursive=True) or [name])]
    paths = [spelled for path in expanded for spelled in (path, abspath(path))]
    # A pattern is looked for in its folder.
    patterns = [name for name in files if any(mark in name for mark in "*?[")]
    folders = sorted(
        {abspath(dirname(name.split("*")[0].split("?")[0].split("[")[0])) for name in patterns}
    )
    database = workspace.new_database(paths, folders)
    with translated_errors(what, workspace.temporary):
        relation = database.sql(query)
        reader = arrow_reader(relation)

    def rows(columns: Sequence[str], _: int) -> Iterator[Any]:
        while True:
            with translated_errors(what, workspace.temporary):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
            yield batch.select([*columns])
        database.close()

    return StreamRows("the query's result", reader.schema, None, rows)


def _parsed(query: str, what: str, workspace: Workspace) -> Any:
    """Returns the tree of a SELECT."""
    with workspace.queries(what) as cursor:
        text = cursor.execute("SELECT json_serialize_sql(?)", [query]).fetchone()[0]
    tree = json.loads(text)
    if tree["error"]:
        raise ValueError(f"{what}: {tree['error_message']}")
    if len(tree["statements"]) != 1:
        raise ValueError(f"{what}: it has {len(tree['statements'])} statements, not one")
    return tree["statements"][0]["node"]


def _check_query(node: Any, what: str, files: list[str], tables: set[str]) -> None:
    """Collects the files that a query reads; refuses those that it does not name."""
    if isinstance(node, list):
        for child in node:
            _check_query(child, what, files, tables)
        return
    if not isinstance(node, dict):
        return
    tables = tables | {entry["key"] for entry in node.get("cte_map", {}).get("map", ())}
    if node.get("type") == "BASE_TABLE" and node["table_name"] not in tables:
        name = node["table_name"]
        if any(ending in name.lower() for ending in (".csv", ".tsv", ".txt")):
            raise ValueError(f"{what}: {_untyped(name)}")
        if "." not in name:
            raise ValueError(f"{what}: there is no table {name!r}; name files as literals")
        files.append(name)
    if node.get("type") == "TABLE_FUNCTION":
        function = node["function"]
        name = function["function_name"].lower()
        if name in _READERS:
            files += _literal_files(function, what)
            if "csv" in name and not _TYPES_OF_CSV & _argument_names(function):
                raise ValueError(f"{what}: {_untyped(name)}")
        elif name not in _GENERATORS:
            raise ValueError(f"{what}: {name}() is not allowed")
    for child in node.values():
        _check_query(child, what, files, tables)


def _untyped(name: str) -> str:
    return (
        f"{name}: DuckDB would guess types from the first rows: use read_csv(..., "
        "all_varchar = true), or columns = {...}"
    )


def _arguments(function: Any) -> list[Any]:
    """Returns the arguments of a function; versions of DuckDB differ."""
    given = function.get("arguments") or function.get("children") or ()
    return [{"alias": a.get("name"), **a["expression"]} if "expression" in a else a for a in given]


def _argument_names(function: Any) -> set[str]:
    names = set()
    for node in _arguments(function):
        names.add(node.get("alias") or "")
        if node.get("class") == "COMPARISON":
            names |= set(node["left"].get("column_names", ()))
    names |= {argument.get("name") or "" for argument in function.get("arguments", ())}
    return names


def _literal_files(function: Any, what: str) -> list[str]:
    nodes = _arguments(function)[:1]
    if nodes and (nodes[0].get("function_name") == "list_value" or nodes[0]["class"] == "ARRAY"):
        nodes = _arguments(nodes[0])
    names = [name for name in map(_literal, nodes) if name is not None]
    if not names or len(names) < len(nodes):
        raise ValueError(f"{what}: name files as literals")
    return names


def _literal(node: Any) -> str | None:
    if node.get("class") != "CONSTANT":
        return None
    literal = node.get("literal")
    value = literal.get("text") if literal else node.get("value", {}).get("value")
    return value if isinstance(value, str) else None


def _names_of(node: Any) -> set[str]:
    """Returns the names of columns in a tree."""
    if isinstance(node, list):
        return set().union(*map(_names_of, node))
    if not isinstance(node, dict):
        return set()
    return set(node.get("column_names", ())) | _names_of([*node.values()])


def _functions_of(node: Any) -> set[str]:
    """Returns the names of functions in a tree; that of a subquery is none of a function."""
    if isinstance(node, list):
        return set().union(*map(_functions_of, node))
    if not isinstance(node, dict):
        return set()
    names = {node["function_name"].lower()} if node.get("class") == "FUNCTION" else set()
    if node.get("class") == "SUBQUERY":
        names.add("subquery")
    return names | _functions_of([*node.values()])
