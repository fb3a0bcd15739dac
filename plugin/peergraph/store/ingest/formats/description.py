"""Descriptions of a graph's files, as JSON or TOML."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from os.path import isabs, join
from pathlib import Path
from typing import Any, TypeVar

from peergraph.json_fields import parse_json
from peergraph.store.ingest.graph_files import (
    Columns,
    CsvFormat,
    EdgeFiles,
    GraphFiles,
    NodeFiles,
    Rows,
)
from peergraph.store.ingest.read.file_list import is_array_path
from peergraph.store.input.source import EDGE, NODE, EdgeType

_Described = TypeVar("_Described", NodeFiles, EdgeFiles, Columns, Rows, CsvFormat)
_SEPARATOR = ","


def description_files(path: Path) -> GraphFiles:
    """Returns the files that a description names. Its keys are the arguments of :class:`NodeFiles`,
    :class:`EdgeFiles`, :class:`Columns`, :class:`Rows` and :class:`CsvFormat`::

        {"nodes": {"paper": {"files": "papers/*.parquet", "id": "pid", "tables": {"x": "f*"}}},
         "edges": {"paper,cites,paper": {"files": "cites.csv.gz"}}}

    Paths are relative to the description. A graph of one node type and one edge type needs no
    names: ``{"nodes": {"files": ...}, "edges": {"files": ...}}``.

    Raises:
        ValueError: it is not valid: says where.
        NotImplementedError: TOML on a Python that cannot read it.
    """
    values = (
        _read_toml(path) if path.suffix == ".toml" else parse_json(path.read_bytes(), str(path))
    )
    where = str(path)
    _check_object(values, where, ("nodes", "edges"))
    nodes = values.get("nodes", {})
    edges = values.get("edges", {})
    for part, name in ((nodes, "nodes"), (edges, "edges")):
        _check_object(part, f"{where}: {name}", None)
    if _is_single(nodes, NodeFiles):
        nodes = {NODE: nodes}
    if _is_single(edges, EdgeFiles):
        edges = {_SEPARATOR.join(EDGE): edges}
    folder = path.parent
    return GraphFiles(
        {t: node_files(v, f"{where}: nodes.{t}", folder) for t, v in nodes.items()},
        {
            edge_type(t, where): edge_files(v, f"{where}: edges.{t}", folder)
            for t, v in edges.items()
        },
    )


def node_files(values: Any, where: str, folder: Path) -> NodeFiles:
    """Returns the files of a node type. Raises ValueError for a wrong description.

    Args:
        values: the arguments of :class:`NodeFiles`.
        where: the name of the values in errors.
        folder: the folder of relative paths.
    """
    return _construct(NodeFiles, values, where, folder)


def edge_files(values: Any, where: str, folder: Path) -> EdgeFiles:
    """Returns the files of an edge type, as :func:`node_files` does for a node type."""
    return _construct(EdgeFiles, values, where, folder)


def edge_type(text: str, where: str) -> EdgeType:
    """Parses ``source type,relation,destination type``."""
    names = text.split(_SEPARATOR)
    if len(names) != 3:
        raise ValueError(
            f"{where}: an edge type is source type,relation,destination type, got {text!r}"
        )
    return names[0], names[1], names[2]


def _construct(kind: type[_Described], values: Any, where: str, folder: Path) -> _Described:
    names = [field.name for field in fields(kind)]
    _check_object(values, where, names)
    arguments = dict(values)
    if arguments.get("files") is not None:
        arguments["files"] = _paths(arguments["files"], f"{where}.files", folder)
    if "csv" in arguments:
        arguments["csv"] = _construct(CsvFormat, arguments["csv"], f"{where}.csv", folder)
    if "tables" in arguments:
        tables = arguments["tables"]
        _check_object(tables, f"{where}.tables", None)
        arguments["tables"] = {
            name: _table(table, f"{where}.tables.{name}", folder) for name, table in tables.items()
        }
    if kind is Rows:
        arguments["values"] = _path(arguments.get("values"), f"{where}.values", folder)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _table(given: Any, where: str, folder: Path) -> Any:
    if isinstance(given, Mapping):
        kind: Any = Rows if "values" in given else Columns
        return _construct(kind, given, where, folder)
    if is_array_path(given):
        return _path(given, where, folder)
    if isinstance(given, str) or (
        isinstance(given, list) and all(isinstance(name, str) for name in given)
    ):
        return given
    raise ValueError(f"{where} must be a column, a list of columns, a file or an object: {given!r}")


def _paths(given: Any, where: str, folder: Path) -> list[str]:
    if isinstance(given, list):
        return [_path(path, where, folder) for path in given]
    return [_path(given, where, folder)]


def _path(given: Any, where: str, folder: Path) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{where} must be a path, got {given!r}")
    return given if isabs(given) else join(folder, given)


def _is_single(values: Mapping[str, Any], kind: type) -> bool:
    """Returns whether an object describes the only type, and not types by name."""
    names = {field.name for field in fields(kind)}
    return (
        bool(values)
        and set(values) <= names
        and not all(isinstance(value, Mapping) for value in values.values())
    )


def _check_object(values: Any, where: str, names: Any) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be an object, got {json.dumps(values)[:60]}")
    unknown = [name for name in values if names is not None and name not in names]
    if unknown:
        known = ", ".join(names)
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}; there are {known}")


def _read_toml(path: Path) -> Any:
    if sys.version_info < (3, 11):
        raise NotImplementedError(f"{path}: TOML needs Python 3.11 or later; write JSON")
    toml = import_module("tomllib")
    try:
        return toml.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None
