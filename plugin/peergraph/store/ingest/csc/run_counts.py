"""Counts of the runs in the buckets' files: a number for each batch and bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from peergraph.store.disk.checked_file import read_into
from peergraph.store.ingest.csc.edge_run import append

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BYTES = 4  # of a count


class RunCounts:
    """The number of edges that each batch has in each bucket. They are in a file, because their
    number grows with that of the edges.

    Args:
        path: the path of the file, which exists from the first counts on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocks: list[tuple[int, int]] = []  # of each one, where it begins and its batches
        self._size = 0

    def append(self, counts: NDArray[np.int32]) -> None:
        """Adds ``[batches, buckets]`` counts behind those before."""
        # The counts of one bucket follow each other, so that they are read at once.
        by_bucket = np.ascontiguousarray(counts.T, np.int32)
        append(self._path, [by_bucket.reshape(-1).view(np.uint8).data])
        self._blocks.append((self._size, len(counts)))
        self._size += by_bucket.nbytes

    def of_bucket(self, number: int) -> NDArray[np.int32]:
        """Returns ``[batches]`` the counts of a bucket."""
        found = np.empty(sum(batches for _, batches in self._blocks), np.int32)
        if not self._blocks:
            return found
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            first = 0
            for begin, batches in self._blocks:
                part = found[first : first + batches].view(np.uint8).data
                read_into(fd, self._path, begin + number * batches * _BYTES, part)
                first += batches
        finally:
            os.close(fd)
        return found

    def remove(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)
