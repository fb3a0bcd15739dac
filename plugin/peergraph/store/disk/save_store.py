"""Saving: rank 0 writes a folder of ``.npy`` files with a JSON manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from peergraph.memory import DistributedTable, Group, NarrowTable, Table
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.store.contents import StoreContents
from peergraph.store.csc.neighbor_lists import read_lists
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.disk.atomic_folder import new_folder
from peergraph.store.disk.manifest import (
    FILE_NAME,
    ArrayEntry,
    EdgeEntry,
    Manifest,
    NodeEntry,
    StorageEntry,
    TableEntry,
)
from peergraph.store.disk.npy_writer import NpyWriter, write_all
from peergraph.store.disk.saved_embeddings import describe
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.input.source import EdgeType, NodeType

_CHUNK_BYTES = 64 << 20


def save_store(
    contents: StoreContents,
    embeddings: Sequence[Embedding],
    folder: str | PathLike[str],
    group: Group,
) -> None:
    """Writes the folder. Collective; raises as :meth:`Store.save`."""
    if any(isinstance(table, DistributedTable) for _, _, table in contents.all_tables()):
        raise NotImplementedError(
            'a store with machines="shard" is not saved, since no machine has all rows: build it '
            'with machines="replicate" on one machine and save that, or use Store.ingest'
        )
    group.agree(folder=os.fspath(folder))

    def write() -> None:
        if group.rank == 0:
            _write_folder(contents, embeddings, Path(folder))

    collective_call(group, write)


def _write_folder(contents: StoreContents, embeddings: Sequence[Embedding], folder: Path) -> None:
    with new_folder(folder) as part:
        schema = contents.schema
        nodes = [_write_nodes(contents, t, part, i) for i, t in enumerate(schema.num_nodes)]
        edges = [_write_edges(contents, t, part, i) for i, t in enumerate(schema.num_edges)]
        trained = describe(embeddings, lambda table, file: _write_table(table, part / file))
        write_text(part / FILE_NAME, Manifest(tuple(nodes), tuple(edges), trained).to_json())


def _write_nodes(
    contents: StoreContents, node_type: NodeType, folder: Path, number: int
) -> NodeEntry:
    tables = contents.node_tables.get(node_type, {})
    entries = _write_tables(tables, folder, f"node{number}")
    return NodeEntry(node_type, contents.schema.num_nodes[node_type], entries)


def _write_edges(
    contents: StoreContents, edge_type: EdgeType, folder: Path, number: int
) -> EdgeEntry:
    structure, stem = contents.structures[edge_type], f"edge{number}"
    destinations, sources = contents.id_maps[edge_type[2]], contents.id_maps[edge_type[0]]
    lists = read_lists(structure, destinations, sources)
    indptr, indices = _write_structure(structure, lists, folder, stem)
    edge_ids = None
    if structure.edge_ids is not None:
        edge_ids = _write_table(structure.edge_ids, folder / f"{stem}.edge_ids.npy")
    entries = _write_tables(contents.edge_tables.get(edge_type, {}), folder, stem)
    num_edges = contents.schema.num_edges[edge_type]
    return EdgeEntry(edge_type, num_edges, indptr, indices, edge_ids, entries)


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
    entries = []
    for number, (name, table) in enumerate(tables.items()):
        storage = None
        stored: Table | RowsWithScales = table
        if isinstance(table, NarrowTable):
            storage, stored = StorageEntry.of(table.codec), table.stored
        array = _write_table(stored, folder / f"{stem}.table{number}.npy")
        entries.append(TableEntry(name, array, storage))
    return tuple(entries)


def _write_table(table: Table | RowsWithScales, path: Path) -> ArrayEntry:
    writer = NpyWriter(path, table.shape, table.dtype)
    with writer:
        step = max(1, _CHUNK_BYTES // max(1, table.row_bytes))
        for begin in range(0, table.rows, step):
            writer.write(table.read(begin, min(begin + step, table.rows)))
    return writer.entry


def write_text(path: Path, text: str) -> None:
    """Creates a file and waits until it is on the disk."""
    with open(path, "xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(text.encode()))
        os.fsync(file.fileno())
