"""Runs of edges of one bucket, and their order by destination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import peergraph._C as _C

if TYPE_CHECKING:
    from numpy.typing import NDArray


def record_dtype(index_dtype: torch.dtype) -> np.dtype[Any]:
    """Returns the dtype of an edge in a bucket, with `destination`, `source` and `edge`. In a file,
    each run follows a record with the number of its edges, and the number of its batch as `edge`.
    """
    source = np.int64 if index_dtype == torch.int64 else np.int32
    return np.dtype([("destination", np.int32), ("source", source), ("edge", np.int32)])


@dataclass(frozen=True)
class EdgeRun:
    """Edges of one bucket from one batch.

    Args:
        memory: [bytes] uint8, the records of the batch; destinations are minus the bucket's first
            one, edges minus `first_edge`.
        dtype: the dtype of a record, see :func:`record_dtype`.
        begin: the first record of the run.
        count: the number of records of the run.
        first_edge: the number that is added to `edge`.
    """

    memory: Tensor
    dtype: np.dtype[Any]
    begin: int
    count: int
    first_edge: int

    @property
    def records(self) -> NDArray[Any]:
        """The records, [count]."""
        return self.memory.numpy().view(self.dtype)[self.begin : self.begin + self.count]

    def select(self, mask: NDArray[np.bool_], first_destination: int = 0) -> EdgeRun:
        """Returns the edges of a mask; subtracts `first_destination` from their destinations."""
        records = self.records[mask]
        records["destination"] -= np.int32(first_destination)
        memory = torch.from_numpy(records.view(np.uint8))
        return EdgeRun(memory, self.dtype, 0, len(records), self.first_edge)


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
        index_dtype: the dtype of sources.
        edge_id_dtype: the dtype of edge ids; None: no edge ids.
    """

    index_dtype: torch.dtype
    edge_id_dtype: torch.dtype | None

    def sort(self, runs: Iterable[EdgeRun], num_destinations: int) -> SortedEdges:
        """Sorts all edges of the runs by destination; those of one destination keep their order."""
        all_runs = list(runs)
        total = sum(run.count for run in all_runs)
        degrees = torch.empty(num_destinations, dtype=torch.int64, device="cpu")
        indices = torch.empty(total, dtype=self.index_dtype, device="cpu")
        edge_ids = None
        if self.edge_id_dtype is not None:
            edge_ids = torch.empty(total, dtype=self.edge_id_dtype, device="cpu")
        _C.sort_bucket(
            runs=[(run.memory, run.begin, run.count, run.first_edge) for run in all_runs],
            degrees=degrees,
            indices=indices,
            edge_ids=edge_ids,
        )
        return SortedEdges(degrees, indices, edge_ids)
