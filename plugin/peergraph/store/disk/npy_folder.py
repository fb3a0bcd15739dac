"""Stores on disk: a folder of plain ``.npy`` files with a JSON manifest, opened by memory map."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.group.run_everywhere import run_everywhere
from peergraph.store.input.source import EdgeSource, EdgeType, GraphSource, NodeType
from peergraph.store.structure.lists import read_lists
from peergraph.store.structure.structure import Structure

if TYPE_CHECKING:
    from peergraph.store.store import Store

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 64 << 20


def save(
    store: Store, folder: str | PathLike[str], write_more: Callable[[Path], dict[str, Any]]
) -> None:
    """See :meth:`Store.save`. `write_more` writes files of its own and returns entries of the
    manifest.
    """
    group = store.group
    if group is None:
        raise RuntimeError(
            "only the ranks that built a store can save it, not a process it was sent to"
        )

    def write() -> None:
        if group.rank == 0:
            _write_folder(store, Path(folder), write_more)

    run_everywhere(group, write)


def open_source(folder: str | PathLike[str], group: Group) -> GraphSource:
    """This rank's share of a saved store. Collective (errors come to all ranks)."""
    return run_everywhere(group, lambda: _share(Path(folder), group.rank, group.world_size))


def _write_folder(store: Store, folder: Path, write_more: Callable[[Path], dict[str, Any]]) -> None:
    if folder.exists():
        raise FileExistsError(f"folder exists: {folder}")
    # Complete or not there at all: written beside its place, then renamed.
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        manifest = {
            "format": FORMAT_VERSION,
            "nodes": [_write_nodes(store, t, part, i) for i, t in enumerate(store.node_types)],
            "edges": [_write_edges(store, t, part, i) for i, t in enumerate(store.edge_types)],
            **write_more(part),
        }
        (part / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _write_nodes(store: Store, node_type: NodeType, folder: Path, number: int) -> dict[str, Any]:
    tables = {n: store.node_table(n, node_type) for n in store.node_table_names(node_type)}
    return {
        "type": node_type,
        "count": store.num_nodes(node_type),
        "tables": write_tables(tables, folder, f"node{number}"),
    }


def _write_edges(store: Store, edge_type: EdgeType, folder: Path, number: int) -> dict[str, Any]:
    structure = store.structure(edge_type)
    lists = read_lists(structure, store.id_map(edge_type[2]), store.id_map(edge_type[0]))
    _write_structure(structure, lists, folder, f"edge{number}")
    if structure.edge_ids is not None:
        _write_table(structure.edge_ids, folder / f"edge{number}.edge_ids.npy")
    tables = {n: store.edge_table(n, edge_type) for n in store.edge_table_names(edge_type)}
    return {
        "type": list(edge_type),
        "count": store.num_edges(edge_type),
        "edge_ids": structure.edge_ids is not None,
        "tables": write_tables(tables, folder, f"edge{number}"),
    }


def _write_structure(
    structure: Structure, lists: Iterator[tuple[Tensor, Tensor]], folder: Path, stem: str
) -> None:
    ids_dtype = np.int32 if structure.index_dtype == torch.int32 else np.int64
    indptr = _new_npy(folder / f"{stem}.indptr.npy", np.int64, (structure.num_destinations + 1,))
    indices = _new_npy(folder / f"{stem}.indices.npy", ids_dtype, (structure.num_edges,))
    indptr[0] = 0
    node, edge = 0, 0
    for degrees, sources in lists:
        indptr[node + 1 : node + 1 + degrees.numel()] = edge + degrees.cumsum(0).numpy()
        indices[edge : edge + sources.numel()] = sources.numpy()
        node, edge = node + degrees.numel(), edge + sources.numel()


def write_tables(tables: dict[str, Table], folder: Path, stem: str) -> list[dict[str, Any]]:
    """A file for each table; returns what :func:`map_table` needs to find it."""
    entries = []
    for number, (name, table) in enumerate(tables.items()):
        file = f"{stem}.table{number}.npy"
        _write_table(table, folder / file)
        dtype = str(table.dtype).removeprefix("torch.")
        entries.append({"name": name, "file": file, "dtype": dtype})
    return entries


def _write_table(table: Table, path: Path) -> None:
    first = _to_numpy(torch.empty((0, *table.shape[1:]), dtype=table.dtype, device="cpu"))
    out = _new_npy(path, first.dtype, tuple(table.shape))
    step = max(1, _CHUNK_BYTES // max(1, table.row_bytes))
    for begin in range(0, table.rows, step):
        end = min(begin + step, table.rows)
        out[begin:end] = _to_numpy(table.read(begin, end))


def _new_npy(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape:
        # A file without data cannot be mapped.
        empty = np.empty(shape, dtype)
        np.save(path, empty)
        return empty
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _to_numpy(values: Tensor) -> np.ndarray:
    """NumPy has no bfloat16: its bits go to disk as int16, and the manifest keeps the dtype."""
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _share(folder: Path, rank: int, parts: int) -> GraphSource:
    """The rank's part of `parts` about equal ones: destinations with their edges, table rows."""
    manifest = read_manifest(folder)
    num_nodes = {e["type"]: e["count"] for e in manifest["nodes"]}
    ranges = {t: (n * rank // parts, n * (rank + 1) // parts) for t, n in num_nodes.items()}
    edges: dict[EdgeType, EdgeSource] = {}
    edge_tables = {}
    for number, entry in enumerate(manifest["edges"]):
        edge_type: EdgeType = tuple(entry["type"])
        edges[edge_type], edge_range = _edges(folder, entry, number, *ranges[edge_type[2]])
        edge_tables[edge_type] = _rows(folder, entry, *edge_range)
    node_tables = {e["type"]: _rows(folder, e, *ranges[e["type"]]) for e in manifest["nodes"]}
    return GraphSource(num_nodes, edges, node_tables, edge_tables, ranges)


def _edges(
    folder: Path, entry: dict[str, Any], number: int, begin: int, end: int
) -> tuple[EdgeSource, tuple[int, int]]:
    """In-edges of destinations begin..end, and the range of their CSC positions."""
    indptr = _mapped(folder / f"edge{number}.indptr.npy")[begin : end + 1]
    first, last = int(indptr[0]), int(indptr[-1])
    indices = _mapped(folder / f"edge{number}.indices.npy")[first:last]
    edge_ids = None
    if entry["edge_ids"]:
        edge_ids = _mapped(folder / f"edge{number}.edge_ids.npy")[first:last]
    return EdgeSource(csc=(indptr - first, indices), edge_ids=edge_ids), (first, last)


def _rows(folder: Path, entry: dict[str, Any], begin: int, end: int) -> dict[str, Tensor]:
    return {table["name"]: map_table(folder, table)[begin:end] for table in entry["tables"]}


def map_table(folder: Path, entry: dict[str, Any]) -> Tensor:
    """The rows of an entry of :func:`write_tables`, by memory map."""
    return _mapped(folder / entry["file"]).view(getattr(torch, entry["dtype"]))


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a saved store says about itself. FileNotFoundError, ValueError as for Store.load."""
    path = folder / _MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"no saved store: {path} is missing")
    manifest: dict[str, Any] = json.loads(path.read_text())
    if manifest.get("format") != FORMAT_VERSION:
        raise ValueError(
            f"{path}: format {manifest.get('format')!r}, this version reads {FORMAT_VERSION}"
        )
    return manifest


def _mapped(path: Path) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(f"incomplete store: {path} is missing")
    # Copy on write: torch warns about read-only arrays, and nothing here writes.
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
