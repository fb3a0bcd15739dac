"""`peergraph ingest`: makes a store's folder from files."""

from __future__ import annotations

import argparse
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peergraph.cli.arguments import byte_count, storage, storage_option
from peergraph.store import EDGE, NODE, BadRowsError, EdgeFiles, NodeFiles, Store
from peergraph.store.ingest.formats.description import FORMATS, constructed, edge_type

_OPTIONS = re.compile(r":(?=[A-Za-z_][\w-]*=[^/\\]*)")
_TYPE = re.compile(r"([\w -]+(?:,[\w -]+,[\w -]+)?)=")
_CSV = {"delimiter": str, "header": bool, "skip_rows": int}
_NODES = {"id": str, "numbering": str, "num_nodes": int, "where": str}
_EDGES = {"source": str, "destination": str, "where": str, "add_reverse": bool, "edge_ids": bool}
_FLAGS = {"yes": True, "true": True, "no": False, "false": False}

_ADVICE = {
    "error": "--bad-rows skip leaves out such edges, and nodes whose looked-up id is missing or "
    "repeated",
    "skip": "these rows have to be mended: without them, later nodes would have other numbers",
}

_EPILOG = """\
files:
  [TYPE=]FILES[:KEY=VALUE,...]   TYPE of edges is SOURCE,RELATION,DESTINATION; a graph of one node
                                 type and one edge type needs none. FILES is a path, a glob in
                                 quotes or a folder.
  keys of nodes                  id, numbering, num_nodes, where
  keys of edges                  source, destination, where, add_reverse, edge_ids
  keys of CSV files              delimiter, header, skip_rows
  any other key                  a table: TABLE=COLUMN, TABLE=COLUMN|COLUMN, TABLE=PATTERN* or
                                 TABLE=file.npy

examples:
  peergraph ingest store ogbn_products
  peergraph ingest store graph.json
  peergraph ingest store --edges 'edges/*.parquet:source=src,destination=dst'
  peergraph ingest store --nodes 'paper=papers/*.parquet:id=pid,x=f*,y=label' \\
      --nodes 'author=authors.csv.gz:id=name' --edges 'author,writes,paper=writes.csv.gz'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("folder", metavar="STORE", help="the folder to be made")
    add(
        "source",
        nargs="?",
        help="a dataset's folder or file, or a description of files (.json, .toml)",
    )
    add(
        "--format",
        choices=("auto", *FORMATS),
        default="auto",
        help="of the source (auto: it is recognized)",
    )
    add(
        "--nodes",
        action="append",
        default=[],
        metavar="FILES",
        help="of a node type; may be repeated",
    )
    add(
        "--edges",
        action="append",
        default=[],
        metavar="FILES",
        help="of an edge type; may be repeated",
    )
    add(
        "--bad-rows",
        choices=("error", "skip"),
        default="error",
        help="rows that cannot be used: write nothing and name them (error), or leave out such "
        "edges, and nodes whose looked-up id is missing or repeated (skip)",
    )
    add(
        "--memory",
        type=byte_count,
        metavar="SIZE",
        help="to use, such as 8G (half of what is free, 16G at most); the rest goes to files",
    )
    add(
        "--storage",
        type=storage,
        action="append",
        default=[],
        metavar="[TYPE.]TABLE=STORAGE",
        help="rows of fewer bytes: float16, bfloat16, float8_e4m3, float8_e5m2, int8 or int8:N; "
        "may be repeated",
    )
    add("--progress", action=argparse.BooleanOptionalAction, help="show bars, or do not")


def run(args: argparse.Namespace) -> int:
    """Makes the folder and prints a report. Returns the exit status: 1 for bad rows, 2 for bad
    arguments or files.
    """
    try:
        if args.source is not None and _is_dgl(args) and find_spec("dgl") is not None:
            import_module("peergraph_dgl")  # helps DGL with the installed torch
        nodes = dict(_node_argument(text) for text in args.nodes)
        edges = dict(_edge_argument(text) for text in args.edges)
        if len(nodes) < len(args.nodes) or len(edges) < len(args.edges):
            raise ValueError("a type is named twice: give all of its files in one glob or folder")
        report = Store.ingest(
            args.folder,
            args.source,
            nodes=nodes or None,
            edges=edges or None,
            format=args.format,
            bad_rows=args.bad_rows,
            memory=args.memory,
            progress=args.progress,
            storage=storage_option(args.storage),
        )
    except BadRowsError as error:
        print(f"peergraph ingest: {error}", file=sys.stderr)
        print(f"nothing was written; {_ADVICE[args.bad_rows]}", file=sys.stderr)
        return 1
    except (ImportError, OSError, ValueError, TypeError, NotImplementedError) as error:
        print(f"peergraph ingest: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0


def _is_dgl(args: argparse.Namespace) -> bool:
    return args.format == "dgl" or (args.format == "auto" and Path(args.source).suffix == ".bin")


def _node_argument(text: str) -> tuple[str, NodeFiles]:
    kind, values = _parsed(text, _NODES)
    return kind or NODE, constructed(NodeFiles, values, f"--nodes {text}", Path())


def _edge_argument(text: str) -> tuple[tuple[str, str, str], EdgeFiles]:
    kind, values = _parsed(text, _EDGES)
    where = f"--edges {text}"
    return edge_type(kind, where) if kind else EDGE, constructed(EdgeFiles, values, where, Path())


def _parsed(text: str, keys: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Parses type and arguments of ``[TYPE=]FILES[:KEY=VALUE,...]``."""
    files, *options = _OPTIONS.split(text, maxsplit=1)
    named = _TYPE.match(files)
    values: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    csv: dict[str, Any] = {}
    if rest := files[named.end() if named else 0 :]:
        values["files"] = rest
    for option in options[0].split(",") if options else ():
        key, separator, value = option.partition("=")
        if not separator:
            raise ValueError(f"{text}: expected KEY=VALUE, got {option!r}")
        target = values if key in keys else csv if key in _CSV else tables
        kind = {**_CSV, **keys}.get(key, _columns)
        try:
            target[key] = _FLAGS[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            what = "yes or no" if kind is bool else "a number"
            raise ValueError(f"{option}: expected {what}") from None
    return named[1] if named else None, values | {"tables": tables, "csv": csv}


def _columns(text: str) -> str | list[str]:
    return text.split("|") if "|" in text else text
