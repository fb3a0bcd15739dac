"""A k-hop sampler in NumPy, without a loop over nodes or edges: the peer of the CPU ranks.

Uniform without replacement, only newly found nodes expand, nodes numbered by first appearance: what
PyG's samples hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass
class NumpySample:
    """Nodes with the seeds in front, edges as local ids, and where the edges lie in the CSC."""

    nodes: Ids
    row: Ids
    col: Ids
    edge_ids: Ids


class NumpySampler:
    """Samples from a CSC by a direct map of 4 bytes a node."""

    def __init__(self, indptr: Ids, indices: NDArray[np.int32], fanouts: list[int]) -> None:
        self._indptr, self._indices, self._fanouts = indptr, indices, fanouts
        self._rows = np.full(indptr.size - 1, -1, np.int32)

    def sample(self, seeds: Ids, seed: int) -> NumpySample:
        """The neighbourhood of distinct seeds."""
        random = np.random.Generator(np.random.SFC64(seed))
        self._rows[seeds] = np.arange(seeds.size, dtype=np.int32)
        hops, count = [seeds], seeds.size
        rows, cols, edges = [], [], []
        for fanout in self._fanouts:
            targets = hops[-1]
            degrees = self._indptr[targets + 1] - self._indptr[targets]
            counts = np.minimum(degrees, fanout)
            positions = _choose(random, self._indptr[targets], degrees, counts, fanout)
            sources = self._indices[positions]
            new = self._append(sources, count)
            rows.append(self._rows[sources])
            cols.append(np.repeat(np.arange(count - targets.size, count), counts))
            edges.append(positions)
            hops.append(new.astype(np.int64))
            count += new.size
        nodes = np.concatenate(hops)
        self._rows[nodes] = -1
        row, col, edge_ids = (np.concatenate(parts) for parts in (rows, cols, edges))
        return NumpySample(nodes, row.astype(np.int64), col, edge_ids)

    def _append(self, sources: NDArray[np.int32], count: int) -> NDArray[np.int32]:
        """The new ones among the sources in order of appearance, which get the next rows."""
        unknown = sources[self._rows[sources] < 0]
        # Written last to first, so that the first place of each remains.
        self._rows[unknown[::-1]] = np.arange(unknown.size - 1, -1, -1, dtype=np.int32)
        first = self._rows[unknown] == np.arange(unknown.size, dtype=np.int32)
        new = unknown[first]
        self._rows[new] = np.arange(count, count + new.size, dtype=np.int32)
        return new


def _choose(
    random: np.random.Generator, begins: Ids, degrees: Ids, counts: Ids, fanout: int
) -> Ids:
    """CSC positions of `counts` edges of each target, in order of the targets."""
    ends = np.cumsum(counts)
    starts = ends - counts
    # All neighbours, to begin with; the targets that have more are drawn for.
    positions = np.repeat(begins - starts, counts)
    positions += np.arange(positions.size)
    drawn = np.flatnonzero(degrees > fanout)
    if drawn.size:
        picks = _distinct(random, degrees[drawn], fanout)
        positions[starts[drawn][:, None] + np.arange(fanout)] = begins[drawn][:, None] + picks
    return positions


def _distinct(random: np.random.Generator, degrees: Ids, fanout: int) -> Ids:
    """[targets, fanout] distinct numbers below each degree."""
    dense = degrees <= 3 * fanout
    picks = np.empty((degrees.size, fanout), np.int64)
    if dense.any():
        picks[dense] = _by_keys(random, degrees[dense], fanout)
    left = np.flatnonzero(~dense)
    while left.size:  # rows with an equal pair are drawn anew
        rows = (random.random((left.size, fanout)) * degrees[left][:, None]).astype(np.int64)
        rows.sort(axis=1)
        picks[left] = rows
        left = left[(rows[:, 1:] == rows[:, :-1]).any(axis=1)]
    return picks


def _by_keys(random: np.random.Generator, degrees: Ids, fanout: int) -> Ids:
    """As _distinct, by the least of random keys."""
    width = int(degrees.max())
    keys = random.random((degrees.size, width), dtype=np.float32)
    keys[np.arange(width) >= degrees[:, None]] = 2
    return np.argpartition(keys, fanout - 1, axis=1)[:, :fanout]
