"""Loading: checks the files of a saved store and makes them the source of a build."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.device.launching import threads_of_rank
from peergraph.memory.group.collective_call import collective_call
from peergraph.store.disk.manifest import (
    FILE_NAME,
    ArrayEntry,
    EdgeEntry,
    Manifest,
    TableEntry,
    read_manifest,
)
from peergraph.store.disk.saved_array import SavedArray
from peergraph.store.input.source import (
    EdgeSource,
    EdgeType,
    EncodedRows,
    GraphSource,
    RowSource,
)

_CHUNK_IDS = 1 << 22


@dataclass(frozen=True)
class SavedStore:
    """A saved store whose manifest agrees with its files.

    Args:
        folder: the folder of the store.
        manifest: the manifest.
        arrays: the files by name.
    """

    folder: Path
    manifest: Manifest
    arrays: dict[str, SavedArray]

    @classmethod
    def open(cls, folder: str | PathLike[str], verify: bool, group: Group) -> SavedStore:
        """Checks the manifest, and header and length of every file. Collective. If a rank fails,
        every rank raises its error.

        Args:
            folder: the folder of the store.
            verify: whether to compare checksums, here and when rows are read.
            group: the ranks.

        Raises:
            FileNotFoundError: there is no saved store, or one of its files is missing.
            ValueError: a part of the store is not in the form that :meth:`Store.save` writes, or
                the ranks load different stores.
        """
        if not isinstance(verify, bool):
            raise TypeError(f"verify must be True or False, got {verify!r}")
        path = Path(folder)

        def check() -> SavedStore:
            manifest = read_manifest(path, verify)
            threads = threads_of_rank(group.world_size)
            arrays = {e.file: SavedArray.check(path, e, verify, threads) for e in manifest.arrays()}
            return cls(path, manifest, arrays)

        saved = collective_call(group, check)
        everyone = group.all_gather(zlib.crc32(saved.manifest.to_json().encode()))
        if len(set(everyone)) > 1:
            raise ValueError(f"the ranks load different stores: {path / FILE_NAME} differs")
        return saved

    def source(self, group: Group, spill: str | PathLike[str] | None) -> GraphSource:
        """Returns this rank's part: an equal range of destinations with their edges, and row
        sources that read the tables later. Collective; reads the structure, with a folder `spill`
        into a file there.

        Raises ValueError on every rank if the structure is not a CSC, or if a checksum differs.
        """
        folder = None if spill is None else Path(spill)
        return collective_call(group, lambda: self._share(group, folder))

    def _share(self, group: Group, spill: Path | None) -> GraphSource:
        rank, parts, pinned = group.rank, group.world_size, group.device.type == "cuda"
        num_nodes = self.manifest.num_nodes
        ranges = {t: (n * rank // parts, n * (rank + 1) // parts) for t, n in num_nodes.items()}
        edges: dict[EdgeType, EdgeSource] = {}
        edge_tables = {}
        for entry in self.manifest.edges:
            nodes = ranges[entry.type[2]]
            shared, positions = self._edges(entry, num_nodes[entry.type[0]], nodes, spill)
            edges[entry.type] = shared
            edge_tables[entry.type] = self._rows(entry.tables, *positions, pinned)
        node_tables = {
            e.type: self._rows(e.tables, *ranges[e.type], pinned) for e in self.manifest.nodes
        }
        frames = self.manifest.frames
        return GraphSource(num_nodes, edges, node_tables, edge_tables, ranges, frames)

    def _edges(
        self, entry: EdgeEntry, num_sources: int, nodes: tuple[int, int], spill: Path | None
    ) -> tuple[EdgeSource, tuple[int, int]]:
        """Returns the in-edges of a range of destinations, and the range of their CSC positions."""
        file = self.arrays[entry.indptr.file]
        indptr = file.read(nodes[0], nodes[1] + 1)
        _check_indptr(indptr, nodes, file, entry.count)
        first, last = int(indptr[0]), int(indptr[-1])
        indices = self._ids(entry.indices, first, last, num_sources, spill)
        edge_ids = None
        if entry.edge_ids is not None:
            edge_ids = self._ids(entry.edge_ids, first, last, entry.count, spill)
        return EdgeSource(csc=(indptr - first, indices), edge_ids=edge_ids), (first, last)

    def _ids(
        self, entry: ArrayEntry, first: int, last: int, limit: int, spill: Path | None
    ) -> Tensor:
        """Returns a copy of the ids at positions first..last; checks that they are below a limit.
        The file itself is not mapped: if it became shorter, that would end the process.
        """
        file = self.arrays[entry.file]
        ids = file.read(first, last, spill)
        for begin in range(0, ids.numel(), _CHUNK_IDS):
            piece = ids[begin : begin + _CHUNK_IDS]
            if int(piece.min()) < 0 or int(piece.max()) >= limit:
                at = begin + int(((piece < 0) | (piece >= limit)).nonzero()[0])
                raise ValueError(
                    f"{file.path}: entry {first + at} must be from 0 to {limit - 1}, "
                    f"is {int(ids[at])}"
                )
        return ids

    def _rows(
        self, tables: tuple[TableEntry, ...], begin: int, end: int, pinned: bool
    ) -> dict[str, Tensor | RowSource]:
        return {t.name: _source(t, self.arrays[t.array.file], begin, end, pinned) for t in tables}


def _source(table: TableEntry, file: SavedArray, begin: int, end: int, pinned: bool) -> RowSource:
    read: Callable[[int, int], Tensor] = partial(file.read, pinned=pinned)
    shape = (end - begin, *table.shape[1:])
    if table.storage is None:
        return RowSource(shape, file.dtype, read, ahead=True)
    codec = table.storage.codec

    def decoded(first: int, last: int) -> Tensor:
        return codec.decode(read(first, last))

    return EncodedRows(
        shape, codec.dtype, decoded, codec.storage, ahead=True, codec=codec, encoded=read
    )


def _check_indptr(indptr: Tensor, nodes: tuple[int, int], file: SavedArray, num_edges: int) -> None:
    """Raises ValueError if a range of indptr is inconsistent."""
    begin, end = nodes
    ends = [(begin, indptr[0], 0, 0 if begin == 0 else num_edges)]
    ends += [(end, indptr[-1], num_edges if end == file.rows - 1 else 0, num_edges)]
    for at, value, least, most in ends:
        if not least <= int(value) <= most:
            bounds = f"{least}" if least == most else f"from {least} to {most}"
            raise ValueError(f"{file.path}: entry {at} must be {bounds}, is {int(value)}")
    falls = indptr[1:] < indptr[:-1]
    if bool(torch.any(falls)):
        at = int(falls.nonzero()[0])
        raise ValueError(
            f"{file.path} must not fall, entry {begin + at} is {int(indptr[at])} and the next one "
            f"{int(indptr[at + 1])}"
        )
