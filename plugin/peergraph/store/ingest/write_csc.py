"""Writes the files of a relation's CSC, from its edges in buckets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from peergraph.store.csc.sort.edge_buckets import EdgeBuckets
from peergraph.store.disk.manifest import ArrayEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.hotness.id_map import id_dtype


def write_csc(
    buckets: EdgeBuckets,
    folder: Path,
    stem: str,
    num_destinations: int,
    keep_edge_ids: bool = True,
    moved: Callable[[int], object] = lambda _: None,
) -> tuple[ArrayEntry, ArrayEntry, ArrayEntry | None]:
    """Empties the buckets into ``<stem>.indptr.npy``, ``.indices.npy`` and ``.edge_ids.npy``. The
    last file is left out if ids are the positions. Returns their entries of the manifest.

    Args:
        keep_edge_ids: whether to write edge ids; otherwise an edge's id is its position.
        moved: called with the number of edges that have been written.
    """
    num_edges = buckets.num_edges
    ids_dtype = id_dtype(num_edges) if keep_edge_ids and not buckets.is_sorted else None
    with ExitStack() as files:

        def create(name: str, rows: int, dtype: torch.dtype) -> NpyWriter:
            path = folder / f"{stem}.{name}.npy"
            return files.enter_context(NpyWriter(path, (rows,), dtype))

        indptr = create("indptr", num_destinations + 1, torch.int64)
        indices = create("indices", num_edges, buckets.index_dtype)
        edge_ids = None if ids_dtype is None else create("edge_ids", num_edges, ids_dtype)
        indptr.write(torch.zeros(1, dtype=torch.int64, device="cpu"))
        first = 0
        for piece in buckets.sorted_edges(ids_dtype):
            ends = piece.degrees.cumsum(0, dtype=torch.int64).add_(first)
            indptr.write(ends)
            first = int(ends[-1]) if len(ends) else first
            indices.write(piece.indices)
            if edge_ids is not None and piece.edge_ids is not None:
                edge_ids.write(piece.edge_ids)
            moved(piece.indices.numel())
    return indptr.entry, indices.entry, None if edge_ids is None else edge_ids.entry
