"""Sorts buckets that do not fit into memory: they have few destinations with many edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from peergraph.store.csc.sort.edge_run import EdgeRun, RunOrder, SortedEdges

if TYPE_CHECKING:
    from numpy.typing import NDArray

ReadRuns = Callable[[], Iterable[EdgeRun]]


def sort_large_bucket(
    runs: ReadRuns, num_destinations: int, most_edges: int, order: RunOrder
) -> Iterator[SortedEdges]:
    """Yields the edges by destination; reads the bucket once for each piece.

    Args:
        runs: reads the bucket from its beginning, a run at a time.
        num_destinations: the number of destinations of the bucket.
        most_edges: the largest number of edges in memory at once; a run may have more.
        order: the options for sorting.
    """
    degrees = np.zeros(num_destinations, np.int64)
    for run in runs():
        np.add.at(degrees, run.records["destination"], 1)
    for begin, end in _ranges(degrees, most_edges):
        if degrees[begin:end].sum() <= most_edges:
            yield order.sort(_selected(runs, begin, end), end - begin)
        else:
            yield from _one_destination(runs, begin, int(degrees[begin]), order)


def _ranges(degrees: NDArray[np.int64], most_edges: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of destinations with at most `most_edges` edges, or of one destination."""
    ends = np.cumsum(degrees)
    begin = 0
    while begin < len(degrees):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most_edges, side="right")))
        yield begin, end
        begin = end


def _selected(runs: ReadRuns, begin: int, end: int) -> Iterator[EdgeRun]:
    """Yields the edges of a range of destinations."""
    for run in runs():
        destination = run.records["destination"]
        yield run.select((destination >= begin) & (destination < end), begin)


def _one_destination(
    runs: ReadRuns, destination: int, degree: int, order: RunOrder
) -> Iterator[SortedEdges]:
    """Yields the edges of a destination that has too many to be sorted at once."""
    degrees = torch.tensor([degree], dtype=torch.int64, device="cpu")
    for run in _selected(runs, destination, destination + 1):
        piece = order.sort([run], 1)
        yield SortedEdges(degrees, piece.indices, piece.edge_ids)
        degrees = degrees[:0]
