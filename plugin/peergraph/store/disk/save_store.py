"""Saving: the ranks write a folder of ``.npy`` files with a JSON manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from peergraph.memory import DistributedTable, Group, NarrowTable, Table
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.table.rows_with_scales import RowsWithScales
from peergraph.progress import stage
from peergraph.store.contents import StoreContents
from peergraph.store.csc.neighbor_lists import read_degrees, read_positions
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
from peergraph.store.disk.npy_writer import write_all
from peergraph.store.disk.saved_embeddings import describe
from peergraph.store.disk.shared_file import ReadRows, write_shared
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.input.source import EdgeType, NodeType


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
    try:
        _save(contents, embeddings, Path(os.path.abspath(folder)), group)
    except Exception:
        with suppress(Exception):
            group.barrier()  # Now the first rank has removed what it had written.
        raise


def _save(
    contents: StoreContents, embeddings: Sequence[Embedding], folder: Path, group: Group
) -> None:
    with ExitStack() as stack:

        def begin() -> Path | None:
            if group.rank:
                return None
            return stack.enter_context(new_folder(folder))

        writer = _Writer(contents, group.broadcast(collective_call(group, begin)), group)
        manifest = writer.write(embeddings)

        def finish() -> None:
            if group.rank == 0:
                write_text(writer.folder / FILE_NAME, manifest.to_json())
                stack.close()  # gives the folder its name

        collective_call(group, finish)


class _Writer:
    """Writes the files of a store; every rank a part of each. All methods are collective."""

    def __init__(self, contents: StoreContents, folder: Path, group: Group) -> None:
        self.folder = folder
        self._contents, self._group = contents, group

    def write(self, embeddings: Sequence[Embedding]) -> Manifest:
        schema = self._contents.schema
        nodes = [self._write_nodes(t, i) for i, t in enumerate(schema.num_nodes)]
        edges = [self._write_edges(t, i) for i, t in enumerate(schema.num_edges)]
        trained = describe(embeddings, self._write_table)
        return Manifest(tuple(nodes), tuple(edges), trained)

    def _write_nodes(self, node_type: NodeType, number: int) -> NodeEntry:
        entries = self._write_tables(self._contents.node_tables.get(node_type, {}), f"node{number}")
        schema = self._contents.schema
        frames = schema.frames.get(node_type, {})
        return NodeEntry(node_type, schema.num_nodes[node_type], entries, frames)

    def _write_edges(self, edge_type: EdgeType, number: int) -> EdgeEntry:
        contents, stem = self._contents, f"edge{number}"
        structure = contents.structures[edge_type]
        indptr, indices = self._write_structure(edge_type, stem)
        edge_ids = None
        if structure.edge_ids is not None:
            edge_ids = self._write_table(structure.edge_ids, f"{stem}.edge_ids.npy")
        entries = self._write_tables(contents.edge_tables.get(edge_type, {}), stem)
        num_edges = contents.schema.num_edges[edge_type]
        frames = contents.schema.frames.get(edge_type, {})
        return EdgeEntry(edge_type, num_edges, indptr, indices, edge_ids, entries, frames)

    def _write_structure(self, edge_type: EdgeType, stem: str) -> tuple[ArrayEntry, ArrayEntry]:
        structure, ids = self._contents.structures[edge_type], self._contents.id_maps
        maps = ids[edge_type[2]], ids[edge_type[0]]
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        indptr = torch.cat([zero, read_degrees(structure, maps[0]).cumsum(0)])

        def read_indptr(begin: int, end: int, out: Tensor) -> None:
            out.copy_(indptr[begin:end])

        def read_indices(begin: int, end: int, out: Tensor) -> None:
            out.copy_(read_positions(structure, indptr, begin, end, *maps))

        return (
            self._write(f"{stem}.indptr.npy", tuple(indptr.shape), torch.int64, read_indptr),
            self._write(
                f"{stem}.indices.npy",
                (structure.num_edges,),
                structure.index_dtype,
                read_indices,
            ),
        )

    def _write_tables(self, tables: Mapping[str, Table], stem: str) -> tuple[TableEntry, ...]:
        entries = []
        for number, (name, table) in enumerate(tables.items()):
            storage = None
            stored: Table | RowsWithScales = table
            if isinstance(table, NarrowTable):
                storage, stored = StorageEntry.of(table.codec), table.stored
            array = self._write_table(stored, f"{stem}.table{number}.npy")
            entries.append(TableEntry(name, array, storage))
        return tuple(entries)

    def _write_table(self, table: Table | RowsWithScales, file: str) -> ArrayEntry:
        def read(begin: int, end: int, out: Tensor) -> None:
            if isinstance(table, RowsWithScales):
                out.copy_(table.read(begin, end))
            else:
                table.read(begin, end, out=out)

        return self._write(file, tuple(table.shape), table.dtype, read)

    def _write(
        self, file: str, shape: tuple[int, ...], dtype: torch.dtype, read: ReadRows
    ) -> ArrayEntry:
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        with stage(f"save {file}", shape[0] * row_bytes, False, self._group.rank):
            return write_shared(self.folder / file, shape, dtype, read, self._group)


def write_text(path: Path, text: str) -> None:
    """Creates a file and waits until it is on the disk."""
    with open(path, "xb", buffering=0) as file:
        write_all(file.fileno(), memoryview(text.encode()))
        os.fsync(file.fileno())
