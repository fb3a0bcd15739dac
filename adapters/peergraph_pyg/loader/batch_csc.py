"""The CSC of a batch, which the sampler knows already, cached for the layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.sampling import LazyDict, Sample
from peergraph.store import EdgeType

from ..compat import memory_of
from ..data import batch_structures


class _Hops:
    """Offsets, targets and counts of the hops of a sample, for all relations.

    Args:
        sample: a sample of ``peergraph.sampling``.
        fanouts: of each hop, with which it was drawn; None: not known.
    """

    def __init__(
        self, sample: Sample, fanouts: Mapping[EdgeType, Sequence[int]] | None = None
    ) -> None:
        arrays = sample.arrays
        self.offsets = None if arrays is None else arrays.offsets
        """All offsets in one tensor, where it is there."""
        self.indptr = sample.indptr
        self.device = next(iter(sample.nodes.values())).device
        self.first_target = sample.first_target
        self.fanouts = fanouts
        # Copies: the lists are the user's, too.
        self.num_edges = {t: tuple(counts) for t, counts in sample.num_sampled_edges.items()}
        self.num_nodes = {t: tuple(counts) for t, counts in sample.num_sampled_nodes.items()}

    @cached_property
    def rows_with_edges(self) -> dict[EdgeType, list[int]] | None:
        """By relation and hop, the number of targets that have edges; None without all offsets in
        one tensor. Waits for the current stream of a GPU, but for a few short kernels only.
        """
        whole, by_type = self.offsets, self.indptr
        if whole is None:
            return None
        num_hops = max(map(len, by_type.values()), default=0)
        sizes = [by_type[t][hop].shape[0] for hop in range(num_hops) for t in by_type]
        ends = list(accumulate(sizes, initial=0))
        places = torch.tensor([*ends[:-1], *(end - 1 for end in ends[1:])], device="cpu")
        with torch.inference_mode(False):
            before = torch.zeros_like(whole)
            torch.cumsum(whole[1:] != whole[:-1], 0, out=before[1:])
            cuts = before[places.to(whole.device, non_blocking=True)].view(2, -1)
            counts: list[int] = (cuts[1] - cuts[0]).tolist()
        return {t: counts[i :: len(by_type)] for i, t in enumerate(by_type)}


class _RelationHops(NamedTuple):
    """Offsets, targets and counts of the hops of a sample, for one relation.

    Args:
        indptr, first_target: of each hop.
        ends: the first edge of each hop, and the number of all.
        last_targets: by the number of edges of the first hops, together, the number of rows up to
            the last target of these hops.
        in_order: whether the targets of each hop come after those of the hop before.
    """

    indptr: list[Tensor]
    first_target: list[int]
    ends: list[int]
    last_targets: dict[int, int]
    in_order: bool

    @classmethod
    def of(cls, hops: _Hops, edge_type: EdgeType) -> _RelationHops:
        """Returns those of a relation."""
        indptr, first_target = hops.indptr[edge_type], hops.first_target[edge_type]
        num_edges = hops.num_edges[edge_type]
        ends = [0, *accumulate(num_edges)]
        last, last_targets, done, in_order = 0, {0: 0}, 0, True
        of_hop = zip(indptr, first_target, num_edges, ends[1:], strict=True)
        for offsets, first, edges, end in of_hop:
            size = offsets.shape[0]
            in_order &= first >= done and (size > 0 or edges == 0)
            done = first + max(0, size - 1)
            last = max(last, first + size - 1)
            # A later hop without edges adds no targets that have edges.
            last_targets.setdefault(end, last)
        return cls(indptr, first_target, ends, last_targets, in_order)


class BatchCsc:
    """The CSC of one relation of a sample, for all its hops or for the first ones.

    A sample lists its edges hop by hop, and the targets of a hop are the rows that the previous hop
    added. So the edges are sorted by destination already. ``trim_to_layer`` keeps the edges of the
    first hops; their offsets stay the same up to the last remaining target.

    Args:
        hops: of the sample.
        edge_type: one of its relations.
    """

    # A loader makes an object for each edge type; a model may use few of them.
    __slots__ = ("_by_size", "_edge_type", "_hops", "_of_hops", "_offsets")

    def __init__(self, hops: _Hops, edge_type: EdgeType) -> None:
        self._hops = hops
        self._edge_type = edge_type
        self._of_hops: _RelationHops | None = None
        self._offsets: Tensor | None = None
        self._by_size: dict[tuple[int, int, int], Csc] = {}

    @property
    def _relation(self) -> _RelationHops:
        if self._of_hops is None:
            self._of_hops = _RelationHops.of(self._hops, self._edge_type)
        return self._of_hops

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
            last_target = self._relation.last_targets[edges]
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
        return self._relation.last_targets.get(num_edges)

    def num_rows_with_edges(self, num_edges: int) -> int | None:
        """Returns the number of rows at which any of the first edges end; None unless they are the
        edges of whole hops.
        """
        hops = self._relation
        by_type = self._hops.rows_with_edges if hops.in_order and num_edges in hops.ends else None
        if by_type is None:
            return None
        return sum(by_type[self._edge_type][: hops.ends.index(num_edges)])

    def min_rows_with_edges(self, num_edges: int) -> int:
        """Returns a lower bound of :meth:`num_rows_with_edges`. Of a hop, a row has at most as
        many edges as the fanout. Does not synchronise.
        """
        hops, fanouts = self._relation, self._hops.fanouts
        if fanouts is None or not hops.in_order:
            return 0
        of_hop = zip(self._hops.num_edges[self._edge_type], hops.ends[1:], fanouts[self._edge_type],
                     strict=False)  # fmt: skip
        return sum(-(-edges // k) for edges, end, k in of_hop if k > 0 and end <= num_edges)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._hops.device

    def tensors(self) -> list[Tensor]:
        """Returns the tensors on the device."""
        whole = self._hops.offsets
        of_hops = self._relation.indptr if whole is None else [whole]
        return [*of_hops, *([] if self._offsets is None else [self._offsets])]

    def _fit(self, edges: int, num_destinations: int, num_sources: int) -> bool:
        hops = self._relation
        if not hops.in_order or edges not in hops.ends:
            return False
        source, _, destination = self._edge_type
        if num_destinations > sum(self._hops.num_nodes[destination]):
            return False
        # The number of rows that the edges of these hops can have as sources.
        sources = sum(self._hops.num_nodes[source][: hops.ends.index(edges) + 1])
        return num_sources >= sources and num_destinations >= hops.last_targets[edges]

    def _offsets_of(self, num_destinations: int) -> Tensor:
        """Returns the [destinations + 1] offsets of the edges of all hops."""
        if self._offsets is None or self._offsets.shape[0] <= num_destinations:
            self._offsets = self._make_offsets(num_destinations)
        return self._offsets[: num_destinations + 1]

    def _make_offsets(self, num_destinations: int) -> Tensor:
        """Returns the offsets of these destinations at least. Each piece is a launch on a GPU."""
        of = self._relation
        pieces, done = [], 0
        for indptr, first, begin in zip(of.indptr, of.first_target, of.ends[:-1], strict=True):
            if first > done:
                pieces.append(indptr.new_full((first - done,), begin))
            if indptr.shape[0] > 1:
                pieces.append(indptr[:-1] + begin if begin > 0 else indptr[:-1])
            done = first + max(0, indptr.shape[0] - 1)
        rest = max(num_destinations + 1 - done, 1)
        pieces.append(of.indptr[0].new_full((rest,), of.ends[-1]))
        return torch.cat(pieces)


def cache_csc(sample: Sample) -> None:
    """Attaches the CSCs of a sample to its row tensors, from which PyG makes edge indices.

    Args:
        sample: a sample with hops; not an induced subgraph.
    """
    _attach_to_rows(sample.row, _Hops(sample))


def _attach_to_rows(row: Mapping[EdgeType, Tensor], hops: _Hops) -> None:
    for edge_type, sources in row.items():
        if hops.num_edges[edge_type]:
            sources._peergraph_csc = BatchCsc(hops, edge_type)  # type: ignore[attr-defined]


class SampledEdges:
    """The edges of all relations of a sample, of which nobody has used any tensor yet.

    Args:
        sample: with ``arrays``.
        edge_types: some of its relations.
        has_structures: whether the edges bring their CSCs.
        fanouts: of each hop, with which the sample was drawn.
    """

    def __init__(
        self,
        sample: Sample,
        edge_types: Sequence[EdgeType],
        has_structures: bool,
        fanouts: Mapping[EdgeType, Sequence[int]],
    ) -> None:
        assert sample.arrays is not None
        self._all, self._ready = sample.arrays.edge_index, sample.arrays.ready
        self._all_types = list(sample.num_sampled_edges)
        self._sizes = [2 * size for size in map(sum, sample.num_sampled_edges.values())]
        self._row, self._col, self._edge_types = sample.row, sample.col, edge_types
        self._hops = _Hops(sample, fanouts) if has_structures else None

    def row_and_col(self) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
        """Returns dicts of the tensors, which are made when either is used."""
        return _Ends(self, self._make_row), _Ends(self, self._make_col)

    def _make_row(self) -> dict[EdgeType, Tensor]:
        row = {edge_type: self._row[edge_type] for edge_type in self._edge_types}
        if self._hops is not None:
            _attach_to_rows(row, self._hops)
        return row

    def _make_col(self) -> dict[EdgeType, Tensor]:
        return {edge_type: self._col[edge_type] for edge_type in self._edge_types}

    def edge_indices(self) -> dict[EdgeType, Tensor]:
        """Returns the [2, edges] edge index of each relation."""
        with torch._C.DisableTorchFunction():  # as in a loader's thread, see filter_batch.py
            parts = torch.unsafe_split_with_sizes(self._all, self._sizes)
            # The memory of relations without edges is that of others.
            matrices = [
                part.view(2, -1) if size else part.new_empty((2, 0))
                for part, size in zip(parts, self._sizes, strict=True)
            ]
        by_type = dict(zip(self._all_types, matrices, strict=True))
        return {t: by_type[t] for t in self._edge_types}

    def attach(self, edge_indices: Mapping[EdgeType, Tensor]) -> None:
        """Attaches the CSCs of relations to their edge indices, if the edges bring them.

        Args:
            edge_indices: some of those that :meth:`edge_indices` has returned.
        """
        hops = self._hops
        if hops is None or self._all.is_inference() or self._all.device != hops.device:
            return
        types = [t for t in edge_indices if hops.num_edges[t]]
        with torch._C.DisableTorchFunction():
            batch_structures.attach(
                [edge_indices[t] for t in types],
                lambda position: BatchCsc(hops, types[position]),
                self._ready,
            )


class _Ends(LazyDict[EdgeType, Tensor]):
    """The sources or the destinations of sampled edges."""

    def __init__(self, edges: SampledEdges, make: Callable[[], dict[EdgeType, Tensor]]) -> None:
        super().__init__(make)
        self.edges = edges


def unused_edges(row: Any, col: Any) -> SampledEdges | None:
    """Returns the edges of which these are the sources and the destinations by type, if nobody can
    have changed them.
    """
    if type(row) is not _Ends or type(col) is not _Ends or row.is_made or col.is_made:
        return None
    return row.edges if row.edges is col.edges and row is not col else None


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


def structure_of(row: Any) -> BatchCsc | None:
    """Returns what :func:`cache_csc` attached to a row tensor."""
    return getattr(row, "_peergraph_csc", None)


def attach(pairs: Iterable[tuple[Any, BatchCsc | None]]) -> None:
    """Attaches CSCs of a sample to edge indices, where both are there and on one device.

    Args:
        pairs: the edge index and the CSC of each edge type.
    """
    by_device: dict[torch.device, list[tuple[Tensor, BatchCsc]]] = {}
    with torch._C.DisableTorchFunction():  # as in a loader's thread, see filter_batch.py
        for edge_index, csc in pairs:
            if csc is None or type(edge_index) is not Tensor or edge_index.is_inference():
                continue
            device = edge_index.device
            if device == csc.device:
                by_device.setdefault(device, []).append((edge_index, csc))
        for of_device in by_device.values():
            edge_indices, structures = zip(*of_device, strict=True)
            batch_structures.attach(edge_indices, structures.__getitem__)
