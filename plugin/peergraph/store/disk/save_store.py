"""Saving: rank 0 writes a folder of ``.npy`` files with a JSON manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.memory import Table
from peergraph.memory.group.collective_call import collective_call
from peergraph.store.csc.neighbor_lists import read_lists
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.disk import saved_embeddings as embeddings
from peergraph.store.disk.atomic_folder import new_folder
from peergraph.store.disk.manifest import (
    FILE_NAME,
    ArrayEntry,
    EdgeEntry,
    Manifest,
    NodeEntry,
    TableEntry,
)
from peergraph.store.disk.npy_writer import NpyWriter, write_all
from peergraph.store.input.source import EdgeType, NodeType

if TYPE_CHECKING:
    from peergraph.store.store import Store

_CHUNK_BYTES = 64 << 20


def save(store: Store, folder: str | PathLike[str]) -> None:
    """See :meth:`Store.save`."""
    group = store.group
    if group is None:
        raise RuntimeError(
            "only the ranks that built a store can save it, not a process it was sent to"
        )

    group.agree(folder=os.fspath(folder))

    def write() -> None:
        if group.rank == 0:
            _write_folder(store, Path(folder))

    collective_call(group, write)


def _write_folder(store: Store, folder: Path) -> None:
    with new_folder(folder) as part:
        nodes = [_write_nodes(store, t, part, i) for i, t in enumerate(store.node_types)]
        edges = [_write_edges(store, t, part, i) for i, t in enumerate(store.edge_types)]
        trained = embeddings.describe(store, lambda table, file: _write_table(table, part / file))
        _write_text(part / FILE_NAME, Manifest(tuple(nodes), tuple(edges), trained).to_json())


def _write_nodes(store: Store, node_type: NodeType, folder: Path, number: int) -> NodeEntry:
    tables = {n: store.node_table(n, node_type) for n in store.node_table_names(node_type)}
    entries = _write_tables(tables, folder, f"node{number}")
    return NodeEntry(node_type, store.num_nodes(node_type), entries)


def _write_edges(store: Store, edge_type: EdgeType, folder: Path, number: int) -> EdgeEntry:
    structure, stem = store.csc(edge_type), f"edge{number}"
    lists = read_lists(structure, store.id_map(edge_type[2]), store.id_map(edge_type[0]))
    indptr, indices = _write_structure(structure, lists, folder, stem)
    edge_ids = None
    if structure.edge_ids is not None:
        edge_ids = _write_table(structure.edge_ids, folder / f"{stem}.edge_ids.npy")
    tables = {n: store.edge_table(n, edge_type) for n in store.edge_table_names(edge_type)}
    entries = _write_tables(tables, folder, stem)
    return EdgeEntry(edge_type, store.num_edges(edge_type), indptr, indices, edge_ids, entries)


def _write_structure(
    structure: TieredCsc, lists: Iterator[tuple[Tensor, Tensor]], folder: Path, stem: str
) -> tuple[ArrayEntry, ArrayEntry]:
    shape = (structure.num_destinations + 1,)
    indptr = NpyWriter(folder / f"{stem}.indptr.npy", shape, torch.int64)
    with indptr:
        shape = (structure.num_edges,)
        indices = NpyWriter(folder / f"{stem}.indices.npy", shape, structure.index_dtype)
        with indices:
            indptr.write(torch.zeros(1, dtype=torch.int64, device="cpu"))
            edge = 0
            for degrees, sources in lists:
                indptr.write(edge + degrees.cumsum(0))
                indices.write(sources)
                edge += sources.numel()
    return indptr.entry, indices.entry


def _write_tables(tables: dict[str, Table], folder: Path, stem: str) -> tuple[TableEntry, ...]:
    return tuple(
        TableEntry(name, _write_table(table, folder / f"{stem}.table{number}.npy"))
        for number, (name, table) in enumerate(tables.items())
    )


def _write_table(table: Table, path: Path) -> ArrayEntry:
    writer = NpyWriter(path, table.shape, table.dtype)
    with writer:
        step = max(1, _CHUNK_BYTES // max(1, table.row_bytes))
        for begin in range(0, table.rows, step):
            writer.write(table.read(begin, min(begin + step, table.rows)))
    return writer.entry


def _write_text(path: Path, text: str) -> None:
    with open(path, "xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(text.encode()))
        os.fsync(file.fileno())
