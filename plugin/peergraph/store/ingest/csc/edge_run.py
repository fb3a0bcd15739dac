"""Runs of edges of one bucket, and their order by destination."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_PIECES = 512  # of one system call


@dataclass(frozen=True)
class EdgeRun:
    """Edges of one bucket from one batch.

    Args:
        destination: [n] int32, destinations minus the bucket's first destination.
        source: [n] int32 or int64, sources.
        edge: [n] int32 or int64, the edges' ids minus `first_edge`.
        first_edge: the number that is added to `edge`.
    """

    destination: NDArray[np.int32]
    source: NDArray[Any]
    edge: NDArray[Any]
    first_edge: int

    @classmethod
    def of(cls, arrays: Iterable[NDArray[Any]], first_edge: int) -> EdgeRun:
        """Returns a run of the three arrays."""
        destination, source, edge = arrays
        return cls(destination, source, edge, first_edge)

    def __len__(self) -> int:
        return len(self.destination)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The edges' ids, [n]."""
        return self.edge.astype(np.int64) + self.first_edge

    def select(self, mask: NDArray[np.bool_], first_destination: int = 0) -> EdgeRun:
        """Returns the edges of a mask; subtracts `first_destination` from their destinations."""
        destination = self.destination[mask] - np.int32(first_destination)
        return EdgeRun(destination, self.source[mask], self.edge[mask], self.first_edge)

    def arrays(self) -> list[NDArray[Any]]:
        """Returns the arrays, in their order in a file."""
        return [self.destination, self.source, self.edge]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Returns the run as the compiled module takes it."""
        destination, source, edge = map(torch.from_numpy, self.arrays())
        return destination, source, edge, self.first_edge


@dataclass(frozen=True)
class SortedEdges:
    """A piece of edges sorted by destination, in the order of a CSC.

    Args:
        degrees: [destinations] int64, the degrees of the piece's destinations. If a piece continues
            the last destination of the previous piece, that piece has the whole degree.
        indices: [n] sources.
        edge_ids: [n] edge ids; None: no edge ids.
    """

    degrees: Tensor
    indices: Tensor
    edge_ids: Tensor | None


@dataclass(frozen=True)
class RunOrder:
    """The options for sorting runs.

    Args:
        by_edge: whether the edges of a destination are sorted by their ids; otherwise they keep
            their order.
        index_dtype: the dtype of sources.
        edge_id_dtype: the dtype of edge ids; None: no edge ids.
    """

    by_edge: bool
    index_dtype: torch.dtype
    edge_id_dtype: torch.dtype | None

    def sort(self, runs: Iterable[EdgeRun], num_destinations: int) -> SortedEdges:
        """Sorts all edges of the runs by destination."""
        held = list(runs)
        total = sum(map(len, held))
        degrees = torch.empty(num_destinations, dtype=torch.int64, device="cpu")
        indices = torch.empty(total, dtype=self.index_dtype, device="cpu")
        edge_ids = None
        if self.edge_id_dtype is not None:
            edge_ids = torch.empty(total, dtype=self.edge_id_dtype, device="cpu")
        _C.sort_bucket(
            runs=[run.tensors() for run in held],
            by_edge=self.by_edge,
            degrees=degrees,
            indices=indices,
            edge_ids=edge_ids,
        )
        return SortedEdges(degrees, indices, edge_ids)


def write_runs(path: Path, runs: Iterable[EdgeRun]) -> None:
    """Appends runs to a file."""
    pieces = [_bytes(a) for run in runs for a in run.arrays() if len(a)]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        while pieces:
            _advance(pieces, os.writev(fd, pieces[:_MOST_PIECES]))
    finally:
        os.close(fd)


def read_run(fd: int, path: Path, run: EdgeRun) -> None:
    """Fills a run's arrays from where the file stands."""
    pieces = [_bytes(array) for array in run.arrays() if len(array)]
    while pieces:
        done = os.readv(fd, pieces)
        if done == 0:
            raise OSError(f"{path} ends early: another process has changed it")
        _advance(pieces, done)


def _advance(pieces: list[memoryview], num_bytes: int) -> None:
    """Removes the bytes that a call of the system has moved from the front of the pieces."""
    while pieces and num_bytes >= len(pieces[0]):
        num_bytes -= len(pieces.pop(0))
    if num_bytes:
        pieces[0] = pieces[0][num_bytes:]


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data
