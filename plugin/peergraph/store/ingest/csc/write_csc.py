"""Writes the files of a relation's CSC, from its edges in buckets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from peergraph.store.disk.manifest import ArrayEntry
from peergraph.store.disk.npy_writer import NpyWriter
from peergraph.store.hotness.id_map import id_dtype
from peergraph.store.ingest.csc.edge_buckets import EdgeBuckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)


def write_csc(
    buckets: EdgeBuckets,
    folder: Path,
    stem: str,
    num_destinations: int,
    keep_edge_ids: bool = True,
    missing_ids: NDArray[np.int64] = _NO_IDS,
    moved: Callable[[int], object] = lambda _: None,
) -> tuple[ArrayEntry, ArrayEntry, ArrayEntry | None]:
    """Empties the buckets into ``<stem>.indptr.npy``, ``.indices.npy`` and ``.edge_ids.npy``. The
    last file is left out if ids are the positions.

    Args:
        buckets: the edges.
        folder: the folder of the files.
        stem: the stem of the file names.
        num_destinations: the number of destinations.
        keep_edge_ids: whether to write edge ids; otherwise an edge's id is its position.
        missing_ids: ids that no edge has, ascending; larger ids are reduced accordingly.
        moved: called with the number of edges that have been written.

    Returns:
        The files' entries of the manifest.
    """
    num_edges = buckets.num_edges
    ids_dtype = id_dtype(num_edges) if keep_edge_ids and not buckets.is_sorted else None
    # Ids may need more bits before they are reduced.
    sort_dtype = torch.int64 if ids_dtype is not None and len(missing_ids) else ids_dtype
    with ExitStack() as files:

        def create(name: str, rows: int, dtype: torch.dtype) -> NpyWriter:
            path = folder / f"{stem}.{name}.npy"
            return files.enter_context(NpyWriter(path, (rows,), dtype, in_threads=True))

        indptr = create("indptr", num_destinations + 1, torch.int64)
        indices = create("indices", num_edges, buckets.index_dtype)
        edge_ids = None if ids_dtype is None else create("edge_ids", num_edges, ids_dtype)
        indptr.write(torch.zeros(1, dtype=torch.int64, device="cpu"))
        first, written, is_identity = 0, 0, True
        for piece in buckets.sorted_edges(sort_dtype):
            ends = piece.degrees.cumsum(0, dtype=torch.int64).add_(first)
            indptr.write(ends)
            first = int(ends[-1]) if len(ends) else first
            indices.write(piece.indices)
            if edge_ids is not None and piece.edge_ids is not None:
                ids = _moved_down(piece.edge_ids, missing_ids)
                is_identity = is_identity and _is_range(ids, written)
                edge_ids.write(ids)
            written += piece.indices.numel()
            moved(piece.indices.numel())
    if edge_ids is None or is_identity:
        # Edges that come in any order may have been sorted by destination all the same.
        (folder / f"{stem}.edge_ids.npy").unlink(missing_ok=True)
        return indptr.entry, indices.entry, None
    return indptr.entry, indices.entry, edge_ids.entry


def _is_range(ids: Tensor, begin: int) -> bool:
    """Returns whether the ids are the numbers from `begin` on."""
    expected = torch.arange(begin, begin + len(ids), dtype=ids.dtype, device="cpu")
    return torch.equal(ids, expected)


def _moved_down(ids: Tensor, missing_ids: NDArray[np.int64]) -> Tensor:
    if len(missing_ids) == 0:
        return ids
    return ids - torch.searchsorted(torch.from_numpy(missing_ids), ids)
