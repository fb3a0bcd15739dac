"""The CSC of a batch, which the sampler knows already, cached for the layers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.sampling import Sample
from peergraph.store import EdgeType

from ..compat import memory_of
from ..data import csc_cache


class BatchCsc:
    """The CSC of one relation of a sample, for all its hops or for the first ones.

    A sample lists its edges hop by hop, and the targets of a hop are the rows that the previous hop
    added. So the edges are sorted by destination already. ``trim_to_layer`` keeps the edges of the
    first hops; their offsets stay the same up to the last remaining target.

    Args:
        sample: a sample of ``peergraph.sampling``.
        edge_type: one of its relations.
    """

    def __init__(self, sample: Sample, edge_type: EdgeType) -> None:
        self._indptr = sample.indptr[edge_type]
        self._first_target = sample.first_target[edge_type]
        # Copies: the lists are the user's, too.
        self._num_edges = tuple(sample.num_sampled_edges[edge_type])
        self._found_sources = tuple(sample.num_sampled_nodes[edge_type[0]])
        self._found_targets = tuple(sample.num_sampled_nodes[edge_type[2]])
        self._offsets: Tensor | None = None
        self._by_size: dict[tuple[int, int, int], Csc] = {}

    # A loader makes an object for each edge type; a model may use few of them.
    @cached_property
    def _ends(self) -> list[int]:
        return [0, *accumulate(self._num_edges)]

    @cached_property
    def _targets_in_order(self) -> bool:
        """Returns whether the targets of each hop come after those of the hop before."""
        done = 0
        hops = zip(self._indptr, self._first_target, self._num_edges, strict=True)
        for offsets, first, edges in hops:
            size = offsets.numel()
            if first < done or (size == 0 and edges):
                return False
            done = first + max(0, size - 1)
        return True

    def csc(self, edge_index: Tensor, num_destinations: int, num_sources: int) -> Csc | None:
        """Returns the CSC of the first edges; None unless they are the edges of whole hops.

        Does not synchronise.

        Args:
            edge_index: [2, edges], a slice of the batch's edge index, or of a copy of it.
            num_destinations, num_sources: numbers of nodes of the layer's input.
        """
        edges = edge_index.shape[1]
        key = (edges, num_destinations, num_sources)
        if key not in self._by_size:
            if not self._fit(edges, num_destinations, num_sources):
                return None
            last_target = self._last_target(edges)
            indptr = self._offsets_of(num_destinations)
            if num_destinations > last_target:
                # Destinations whose edges were trimmed get no edges: their offsets are `edges`.
                indptr = indptr.clamp(max=edges)
            self._by_size[key] = Csc(
                indptr.to(edge_index.dtype),
                # A view would keep the edge index alive, with which this object must die.
                edge_index.data[0],
                num_sources,
                transient=True,
                num_nonisolated=last_target,
                check=False,
            )
        return self._by_size[key]

    def num_destinations(self, num_edges: int) -> int | None:
        """Returns the number of rows up to the last target of the first edges; None unless they are
        the edges of whole hops.
        """
        return self._last_target(num_edges) if num_edges in self._ends else None

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        return [*self._indptr, *([] if self._offsets is None else [self._offsets])]

    def _fit(self, edges: int, num_destinations: int, num_sources: int) -> bool:
        if not self._targets_in_order or edges not in self._ends:
            return False
        if num_destinations > sum(self._found_targets):
            return False
        # The number of rows that the edges of these hops can have as sources.
        sources = sum(self._found_sources[: self._ends.index(edges) + 1])
        return num_sources >= sources and num_destinations >= self._last_target(edges)

    def _last_target(self, edges: int) -> int:
        """Returns the number of rows up to the last target of the first edges."""
        hops = self._ends.index(edges)
        targets = zip(self._indptr[:hops], self._first_target[:hops], strict=True)
        return max((first + indptr.numel() - 1 for indptr, first in targets), default=0)

    def _offsets_of(self, num_destinations: int) -> Tensor:
        """Returns the [destinations + 1] offsets of the edges of all hops."""
        if self._offsets is None or self._offsets.shape[0] <= num_destinations:
            self._offsets = self._make_offsets(num_destinations)
        return self._offsets[: num_destinations + 1]

    def _make_offsets(self, num_destinations: int) -> Tensor:
        """Returns the offsets of these destinations at least. Each piece is a launch on a GPU."""
        pieces, done = [], 0
        hops = zip(self._indptr, self._first_target, self._ends[:-1], strict=True)
        for indptr, first, begin in hops:
            if first > done:
                pieces.append(indptr.new_full((first - done,), begin))
            if indptr.shape[0] > 1:
                pieces.append(indptr[:-1] + begin if begin > 0 else indptr[:-1])
            done = first + max(0, indptr.shape[0] - 1)
        rest = max(num_destinations + 1 - done, 1)
        pieces.append(self._indptr[0].new_full((rest,), self._ends[-1]))
        return torch.cat(pieces)


def cache_csc(sample: Sample) -> None:
    """Attaches the CSCs of a sample to its row tensors, from which PyG makes edge indices.

    Args:
        sample: a sample with hops; not an induced subgraph.
    """
    for edge_type, row in sample.row.items():
        if sample.num_sampled_edges[edge_type]:
            row._peergraph_csc = BatchCsc(sample, edge_type)  # type: ignore[attr-defined]


def edge_index_of(row: Tensor | None, col: Tensor | None, device: torch.device) -> Tensor | None:
    """Returns the matrix of which the tensors are the two rows, where PyG would copy them.

    Samplers write the destinations of edges behind their sources. Returns None for other tensors,
    and for tensors on other devices.
    """
    if type(row) is not Tensor or type(col) is not Tensor:
        return None
    with torch._C.DisableTorchFunction():  # as in a loader's thread, see filter_batch.py
        return _joined(row, col) if row.device == device else None


def _joined(row: Tensor, col: Tensor) -> Tensor | None:
    if row.dim() != 1:
        return None
    edges = row.shape[0]
    if row.shape != col.shape or row.dtype != col.dtype:
        return None
    if edges == 0:  # the memory of relations without edges is that of others
        return row.new_empty((2, 0))
    if col.storage_offset() != row.storage_offset() + edges or not row.is_contiguous():
        return None
    if not col.is_contiguous() or memory_of(row) != memory_of(col):
        return None
    return row.as_strided((2, edges), (edges, 1))


def attach(pairs: Iterable[tuple[Tensor | None, Any]]) -> None:
    """Attaches the CSCs of a sample's row tensors to the edge indices that were made of them.

    Args:
        pairs: the row tensor and the edge index of each edge type.
    """
    by_device: dict[torch.device, list[tuple[Tensor, BatchCsc]]] = {}
    with torch._C.DisableTorchFunction():  # as in a loader's thread, see filter_batch.py
        for row, edge_index in pairs:
            csc = getattr(row, "_peergraph_csc", None)
            if csc is None or type(edge_index) is not Tensor or edge_index.is_inference():
                continue
            if edge_index.device == csc.tensors()[0].device:
                by_device.setdefault(edge_index.device, []).append((edge_index, csc))
        for of_device in by_device.values():
            csc_cache.attach(of_device)
