"""The structure that a sampler made along with a batch's edges, kept for the layers."""

from __future__ import annotations

import weakref
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.sampling import Sample
from peergraph.store import EdgeType


class Blocks:
    """The hops of one relation of a sample as one CSC, or as that of its first hops.

    A sample lists its edges hop by hop, and a hop's targets are the rows that the hop before added:
    the edges are grouped by destination already, and what ``trim_to_layer`` leaves of them, the
    first hops, has the same offsets up to the last target that is left.

    Args:
        sample: from ``peergraph.sampling``.
        edge_type: one of its relations.
    """

    def __init__(self, sample: Sample, edge_type: EdgeType) -> None:
        self._indptr = sample.indptr[edge_type]
        self._first_target = sample.first_target[edge_type]
        self._num_targets = sum(sample.num_sampled_nodes[edge_type[2]])
        self._ends = [0, *accumulate(sample.num_sampled_edges[edge_type])]
        # Rows that the edges of the first hops begin at: they end at rows that were there before.
        self._num_sources = [0, *accumulate(sample.num_sampled_nodes[edge_type[0]])][1:]
        self._offsets: Tensor | None = None
        self._by_size: dict[tuple[int, int, int], Csc] = {}

    def csc(self, edge_index: Tensor, num_destinations: int, num_sources: int) -> Csc | None:
        """The structure of the first edges; None unless they are those of whole hops.

        Does not synchronise.

        Args:
            edge_index: [2, edges], a slice of what the blocks were made with.
            num_destinations, num_sources: nodes that the layer sees.
        """
        edges = edge_index.shape[1]
        key = (edges, num_destinations, num_sources)
        if key not in self._by_size:
            if not self._fit(edges, num_destinations, num_sources):
                return None
            # Behind the last target that is left, all offsets are the number of edges.
            indptr = self._whole()[: num_destinations + 1].clamp(max=edges)
            self._by_size[key] = Csc(
                indptr.to(edge_index.dtype),
                # A view would keep the edge index alive, whose end is the end of this object.
                edge_index.data[0],
                num_sources,
                transient=True,
                num_nonisolated=self._last_target(edges),
                check=False,
            )
        return self._by_size[key]

    def tensors(self) -> list[Tensor]:
        """What lies on the device."""
        return [*self._indptr, *([] if self._offsets is None else [self._offsets])]

    def _fit(self, edges: int, num_destinations: int, num_sources: int) -> bool:
        if edges not in self._ends or num_destinations > self._num_targets:
            return False
        sources = self._num_sources[self._ends.index(edges)]
        return num_sources >= sources and num_destinations >= self._last_target(edges)

    def _last_target(self, edges: int) -> int:
        """Targets of the hops of the first edges, all before the last one among them."""
        hops = self._ends.index(edges)
        targets = zip(self._indptr[:hops], self._first_target[:hops], strict=True)
        return max((first + indptr.numel() - 1 for indptr, first in targets), default=0)

    def _whole(self) -> Tensor:
        """[targets + 1] offsets of all hops' edges."""
        if self._offsets is None:
            pieces, done = [], 0
            hops = zip(self._indptr, self._first_target, self._ends[:-1], strict=True)
            for indptr, first, begin in hops:
                pieces.append(indptr.new_full((first - done,), begin))
                pieces.append(indptr[:-1] + begin)
                done = first + max(0, indptr.numel() - 1)
            rest = self._num_targets + 1 - done
            pieces.append(self._indptr[0].new_full((rest,), self._ends[-1]))
            self._offsets = torch.cat(pieces)
        return self._offsets


# By the id of the edge index, which the entry goes with.
_by_edge_index: dict[int, tuple[weakref.ref[Tensor], int, Blocks]] = {}


def remember(sample: Sample) -> None:
    """Ties the blocks of a sample to the tensors of its sources, from which PyG makes edge indices.

    Args:
        sample: whose edges are those of hops; not an induced subgraph.
    """
    for edge_type, row in sample.row.items():
        if sample.num_sampled_edges[edge_type] and _rows_follow(sample, edge_type):
            row.peergraph_blocks = Blocks(sample, edge_type)  # type: ignore[attr-defined]


def hand_over(row: Tensor | None, edge_index: Any) -> None:
    """Ties the blocks of a sample's sources to the edge index that was just made of them."""
    blocks = getattr(row, "peergraph_blocks", None)
    if blocks is None or type(edge_index) is not Tensor or edge_index.is_inference():
        return
    if edge_index.device != blocks.tensors()[0].device:
        return
    key = id(edge_index)
    entry = weakref.ref(edge_index, lambda _: _by_edge_index.pop(key, None))
    _by_edge_index[key] = entry, edge_index._version, blocks


def find(edge_index: Tensor) -> Blocks | None:
    """The blocks of an edge index that a loader made and nobody has written to.

    Args:
        edge_index: it, or a slice of its first edges.
    """
    if edge_index.is_inference():
        return None
    whole = edge_index if edge_index._base is None else edge_index._base
    entry = _by_edge_index.get(id(whole))
    if entry is None or entry[0]() is not whole or entry[1] != whole._version:
        return None
    starts = edge_index.storage_offset() == whole.storage_offset()
    begins = starts and edge_index.stride() == whole.stride()
    return entry[2] if begins and edge_index.dim() == 2 and edge_index.shape[0] == 2 else None


def tensors_behind(edge_index: Tensor) -> list[Tensor]:
    """The device memory of an edge index's blocks, which goes from stream to stream with it."""
    blocks = find(edge_index)
    return [] if blocks is None else blocks.tensors()


def _rows_follow(sample: Sample, edge_type: EdgeType) -> bool:
    """Whether each hop's targets lie behind those of the hop before."""
    done = 0
    indptr, first_target = sample.indptr[edge_type], sample.first_target[edge_type]
    for hop, (offsets, first) in enumerate(zip(indptr, first_target, strict=True)):
        if first < done or (offsets.numel() == 0 and sample.num_sampled_edges[edge_type][hop]):
            return False
        done = first + max(0, offsets.numel() - 1)
    return True
