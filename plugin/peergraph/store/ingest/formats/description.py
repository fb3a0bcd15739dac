"""Datasets of known formats, and descriptions of a graph's files as JSON or TOML."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from peergraph.json_fields import parse_json
from peergraph.store.ingest.formats.ogb import lsc_files, ogb_files
from peergraph.store.ingest.formats.saved_graphs import dgl_files, pyg_files
from peergraph.store.ingest.graph_files import (
    Columns,
    CsvFormat,
    EdgeFiles,
    GraphFiles,
    NodeFiles,
    Rows,
    TableFiles,
)
from peergraph.store.ingest.read.arrays import is_array_path
from peergraph.store.input.source import EDGE, NODE, EdgeType

_Described = TypeVar("_Described", NodeFiles, EdgeFiles, TableFiles, Columns, Rows, CsvFormat)
_SEPARATOR = ","


def described_files(source: str | PathLike[str], format: str = "auto") -> GraphFiles:
    """Returns the files of a dataset.

    Args:
        source: its folder or file.
        format: a name of :data:`FORMATS`, or ``"auto"``.

    Raises:
        FileNotFoundError: there is nothing of that name.
        ValueError: it is of no known format, or not of this one.
    """
    path = Path(source)
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"format must be auto or one of {', '.join(FORMATS)}, got {format!r}")
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    names = [format]
    if format == "auto":
        endings = {".json": "description", ".toml": "description", ".bin": "dgl", ".pt": "pyg"}
        names = ["ogb", "lsc", "pyg"] if path.is_dir() else [endings.get(path.suffix, "ogb")]
    for name in names:
        if (files := FORMATS[name](path)) is not None:
            return files
    raise ValueError(
        f"{path} is of no known format ({', '.join(FORMATS)}); describe it by nodes and edges"
        if format == "auto"
        else f"{path} is no dataset of the format {format!r}"
    )


def description_files(path: Path) -> GraphFiles:
    """Returns the files that a description names. Its keys are the arguments of :class:`NodeFiles`,
    :class:`EdgeFiles`, :class:`Columns`, :class:`Rows` and :class:`CsvFormat`::

        {"nodes": {"paper": {"files": "papers/*.parquet", "id": "pid", "tables": {"x": "f*"}}},
         "edges": {"paper,cites,paper": {"files": "cites.csv.gz"}}}

    or, for the tables of a database, those of :class:`TableFiles`::

        {"tables": {"order": {"files": "orders.parquet", "foreign_keys": {"user_id": "user"}}}}

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
    kinds = {"nodes": NodeFiles, "edges": EdgeFiles, "tables": TableFiles}
    single = {"nodes": NODE, "edges": _SEPARATOR.join(EDGE)}
    _check_object(values, where, kinds)
    described: dict[str, Any] = {}
    for name, kind in kinds.items():
        part = values.get(name, {})
        _check_object(part, f"{where}: {name}", None)
        if name in single and _is_single(part, kind):
            part = {single[name]: part}
        described[name] = {
            edge_type(t, where) if name == "edges" else t: constructed(
                kind, value, f"{where}: {name}.{t}", path.parent
            )
            for t, value in part.items()
        }
    return GraphFiles(**described)


def edge_type(text: str, where: str) -> EdgeType:
    """Parses ``source type,relation,destination type``."""
    names = text.split(_SEPARATOR)
    if len(names) != 3:
        raise ValueError(
            f"{where}: an edge type is source type,relation,destination type, got {text!r}"
        )
    return names[0], names[1], names[2]


def constructed(kind: type[_Described], values: Any, where: str, folder: Path) -> _Described:
    """Returns an object of a class of descriptions. Raises ValueError for a wrong description.

    Args:
        kind: the class.
        values: its arguments.
        where: the name of the values in errors.
        folder: the folder of relative paths.
    """
    _check_object(values, where, [field.name for field in fields(kind)])
    arguments = dict(values)
    for name, read in _READERS.items():
        if arguments.get(name) is not None:
            arguments[name] = read(arguments[name], f"{where}.{name}", folder)
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _tables(value: Any, where: str, folder: Path) -> dict[str, Any]:
    _check_object(value, where, None)
    return {name: _table(table, f"{where}.{name}", folder) for name, table in value.items()}


def _table(value: Any, where: str, folder: Path) -> Any:
    if isinstance(value, Mapping):
        kind: Any = Rows if "values" in value else Columns
        return constructed(kind, value, where, folder)
    if is_array_path(value):
        return _path(value, where, folder)
    names = value if isinstance(value, list) else [value]
    if all(isinstance(name, str) for name in names):
        return value
    raise ValueError(f"{where} must be a column, a list of columns, a file or an object: {value!r}")


def _paths(value: Any, where: str, folder: Path) -> list[str]:
    return [_path(path, where, folder) for path in (value if isinstance(value, list) else [value])]


def _path(value: Any, where: str, folder: Path) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a path, got {value!r}")
    return str(folder / value)


_READERS: dict[str, Callable[[Any, str, Path], Any]] = {
    "files": _paths,
    "values": _path,
    "tables": _tables,
    "csv": lambda value, where, folder: constructed(CsvFormat, value, where, folder),
}
"""Arguments that are no plain values."""


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
        keys = ", ".join(names)
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}; there are {keys}")


def _read_toml(path: Path) -> Any:
    if sys.version_info < (3, 11):
        raise NotImplementedError(f"{path}: TOML needs Python 3.11 or later; write JSON")
    toml = import_module("tomllib")
    try:
        return toml.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


FORMATS: dict[str, Callable[[Path], GraphFiles | None]] = {
    "ogb": ogb_files,
    "lsc": lsc_files,
    "dgl": dgl_files,
    "pyg": pyg_files,
    "description": description_files,
}
