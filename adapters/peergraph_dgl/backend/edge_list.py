"""The edges of one relation as torch tensors, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import dgl.heterograph_index as dgl_index
import numpy as np
import torch
from torch import Tensor

from peergraph.aggregate import Csc, Structure, is_arange, row_of_edges
from peergraph.integration import has_static_shapes, is_explaining

from .. import compat


class Edges(Protocol):
    """The edges of one relation, over which DGL's message passing runs.

    :class:`EdgeList` holds all of them; edges that are partitioned over ranks have the same
    methods.
    """

    @property
    def num_src(self) -> int:
        """Number of source nodes."""
        ...

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        ...

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the features."""
        ...

    @property
    def idtype(self) -> torch.dtype:
        """Dtype of node ids and degrees: int32 or int64."""
        ...

    def csc(self) -> Structure:
        """Returns the structure; edge features are in the order of the edge ids."""
        ...

    def in_degrees(self) -> Tensor:
        """Returns the number of edges of each destination, [num_dst]."""
        ...

    def out_degrees(self) -> Tensor:
        """Returns the number of edges of each source, [num_src]."""
        ...

    def has_zero_in_degrees(self) -> bool:
        """Returns whether a destination has no edges."""
        ...

    def fill_empty_rows(self, values: Tensor, value: float) -> Tensor:
        """Returns `values` [num_dst, *features] with `value` at destinations without edges."""
        ...

    def reverse(self) -> Edges:
        """Returns the same edges from destinations to sources."""
        ...

    def select(self, edge_ids: Tensor) -> Edges:
        """Returns the edges of these ids, in their order."""
        ...

    def softmax_with(self, others: Sequence[Any], scores: Sequence[Tensor]) -> Sequence[Tensor]:
        """Softmax at each destination over the edges of several relations.

        Args:
            others: further edges of the same kind to the same destinations.
            scores: [edges, *heads] of these edges, then of each of `others`.

        Returns:
            [edges, *heads] for each relation.
        """
        ...


class EdgeList:
    """Edges from `num_src` to `num_dst` nodes; edge `i` is the i-th of the given tensors.

    Degrees, the CSC of the kernels and the reversed edges are computed on first use and cached.

    Args:
        num_src, num_dst: number of source and destination nodes.
        src: [edges] int32 or int64 source nodes.
        dst: [edges] destination nodes, of the dtype and device of `src`. Give `dst` or `indptr`.
        indptr: [num_dst + 1] int32 or int64 offsets, if the edges are grouped by destination.
    """

    def __init__(
        self,
        num_src: int,
        num_dst: int,
        src: Tensor,
        dst: Tensor | None = None,
        indptr: Tensor | None = None,
    ) -> None:
        assert (dst is None) != (indptr is None)
        self.num_src, self.num_dst, self.src = num_src, num_dst, src
        self._dst = dst
        self._indptr = indptr
        self._csc: Csc | None = None
        self._reversed: EdgeList | None = None
        self._by_destination: tuple[Tensor, Tensor, Tensor] | None = None
        self._in_degrees: Tensor | None = None
        self._out_degrees: Tensor | None = None
        self._empty_rows: Tensor | None = None
        self._has_zero_in_degrees: bool | None = None

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @property
    def device(self) -> torch.device:
        return self.src.device

    @property
    def idtype(self) -> torch.dtype:
        return self.src.dtype

    @property
    def dst(self) -> Tensor:
        """[edges] destination nodes."""
        if self._dst is None:
            assert self._indptr is not None
            self._dst = row_of_edges(self._indptr, self.num_edges, self.src.dtype)
        return self._dst

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the list was made of or has computed."""
        tensors = (self.src, self._dst, self._indptr)
        return tuple(tensor for tensor in tensors if tensor is not None)

    def csc(self) -> Csc:
        """Returns the CSC that the kernels take; edge features are in the order of the edge ids."""
        csc = self._make_csc()
        csc.count_use(counted=not is_explaining())
        return csc

    def _make_csc(self) -> Csc:
        if self._csc is None:
            if self._indptr is not None:
                self._csc = Csc(self._indptr, self.src, self.num_src, transient=None, check=False)
            else:
                # A transpose for many uses would wait for the GPU.
                fixed = has_static_shapes()
                ends = self.src, self.dst, self.num_dst, self.num_src
                self._csc = Csc.from_coo(*ends, transient=fixed or None, fixed=fixed)
        return self._csc

    def reverse(self) -> EdgeList:
        """Returns the same edges from destinations to sources."""
        if self._reversed is None:
            self._reversed = EdgeList(self.num_dst, self.num_src, self.dst, self.src)
        return self._reversed

    def permute(self, edge_ids: Tensor) -> EdgeList:
        """Returns a list whose edge `edge_ids[i]` is edge `i` of this one; without ids, this
        list.
        """
        # Where there are no ids, DGL passes an empty list or tensor of any dtype.
        if edge_ids.numel() == 0 or is_arange(edge_ids.contiguous()):
            return self
        index = edge_ids.long()
        src, dst = torch.empty_like(self.src), torch.empty_like(self.dst)
        src[index], dst[index] = self.src, self.dst
        return EdgeList(self.num_src, self.num_dst, src, dst)

    def select(self, edge_ids: Tensor) -> EdgeList:
        """Returns the edges of these ids, in their order."""
        ids = edge_ids.long()
        return EdgeList(self.num_src, self.num_dst, self.src[ids], self.dst[ids])

    def softmax_with(self, others: Sequence[EdgeList], scores: Sequence[Tensor]) -> list[Tensor]:
        """Softmax at each destination over the edges of this list and `others`."""
        lists = [self, *others]
        nodes = torch.cat([edges.dst for edges in lists])
        # The kernel reads edge scores only, so any source node will do.
        joined = EdgeList(1, self.num_dst, torch.zeros_like(nodes), nodes)
        weights = joined.csc().edge_softmax(torch.cat(list(scores)))
        counts = [edges.num_edges for edges in lists]
        return list(weights.split(counts))  # type: ignore[no-untyped-call]

    def by_destination(self) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, sources and edge ids, grouped by destination, in the dtype of `src`."""
        if self._by_destination is None:
            rows = self._make_csc()
            ids = rows.edge_ids
            if ids is None:
                ids = torch.arange(self.num_edges, dtype=self.src.dtype, device=self.device)
            dtype = self.src.dtype
            self._by_destination = rows.indptr.to(dtype), rows.indices.to(dtype), ids.to(dtype)
        return self._by_destination

    def in_degrees(self) -> Tensor:
        """Returns the [num_dst] number of edges of each destination."""
        if self._in_degrees is None:
            self._in_degrees = self._make_csc().in_degrees().to(self.src.dtype)
        return self._in_degrees

    def empty_rows(self) -> Tensor:
        """Destinations without edges. Synchronises with a GPU, to know their number."""
        if self._empty_rows is None:
            # NumPy finds them in a tenth of torch's time for the rows of a mini-batch.
            offsets = self._make_csc().indptr.cpu().numpy()
            empty = np.flatnonzero(offsets[1:] == offsets[:-1])
            self._empty_rows = torch.from_numpy(empty).to(self.device)
        return self._empty_rows

    def fill_empty_rows(self, values: Tensor, value: float) -> Tensor:
        """Returns `values` with `value` at destinations without edges; may work in place."""
        if values.device.type != "cpu":  # Indices would synchronise, to know how many there are.
            flags = self.in_degrees() == 0
            return values.masked_fill(flags.reshape(-1, *[1] * (values.dim() - 1)), value)
        empty = self.empty_rows()
        return values.index_fill_(0, empty, value) if empty.numel() else values

    def has_zero_in_degrees(self) -> bool:
        """Returns whether a destination has no edges. Synchronises with a GPU at the first call."""
        if self._has_zero_in_degrees is None:
            self._has_zero_in_degrees = bool((self.in_degrees() == 0).any())
        return self._has_zero_in_degrees

    def out_degrees(self) -> Tensor:
        """Returns the [num_src] number of edges of each source."""
        if self._out_degrees is None:
            # `bincount` would synchronise with a GPU.
            counts = torch.zeros(self.num_src, dtype=self.src.dtype, device=self.device)
            ones = counts.new_ones(()).expand(self.num_edges)
            self._out_degrees = counts.index_add_(0, self.src, ones)
        return self._out_degrees

    def to_dgl_index(self, num_ntypes: int = 2) -> Any:
        """DGL's own index with this relation between two node types, or within one; shares the
        memory.
        """
        counts = (num_ntypes, self.num_src, self.num_dst)
        formats = ["coo", "csr", "csc"]
        if self._indptr is None:
            return dgl_index.create_unitgraph_from_coo(*counts, self.src, self.dst, formats)
        # Some of DGL's kernels need edge ids even where DGL itself leaves them out.
        ids = torch.arange(self.num_edges, dtype=self.src.dtype, device="cpu")
        indptr = self._indptr
        return dgl_index.create_unitgraph_from_csr(*counts, indptr, self.src, ids, formats, True)

    def to(self, device: torch.device, dtype: torch.dtype) -> EdgeList:
        """Returns a copy on another device, or with node ids of another dtype."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, dtype, non_blocking=True)

        src = moved(self.src)
        assert src is not None
        if self._indptr is not None:
            return EdgeList(self.num_src, self.num_dst, src, indptr=moved(self._indptr))
        return EdgeList(self.num_src, self.num_dst, src, moved(self._dst))

    def in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, destinations and ids of the edges into `nodes`, node by node."""
        indptr, indices, edge_ids = self.by_destination()
        nodes = nodes.long()
        counts = (indptr[nodes + 1] - indptr[nodes]).long()
        ends = counts.cumsum(0)
        total = int(ends[-1]) if nodes.numel() else 0
        first = torch.repeat_interleave(
            indptr[nodes].long() - (ends - counts), counts, output_size=total
        )
        positions = first + torch.arange(total, device=self.device)
        dst = torch.repeat_interleave(nodes, counts, output_size=total).to(self.src.dtype)
        return indices[positions], dst, edge_ids[positions]


def edge_list_of(index: Any, etype: int) -> EdgeList:
    """Returns the edges of one relation of DGL's own index, in the order of their ids."""
    source, destination = index.metagraph.find_edge(etype)
    counts = index.num_nodes(source), index.num_nodes(destination)
    if not index.num_edges(etype):
        src, dst, _ = index.edges(etype)
        return EdgeList(*counts, src, dst)
    created = compat.created_formats(index)
    if "coo" in created:
        return EdgeList(*counts, *compat.coo_of(index, etype))
    # The kernels take edges by destination. DGL's `edges` would make a COO, which the formats of
    # the graph may not allow.
    by_destination = "csc" in created
    indptr, indices, ids = compat.csr_of(index, etype, transposed=by_destination)
    if by_destination:
        return EdgeList(*counts, indices, indptr=indptr).permute(ids)
    reversed_edges = EdgeList(counts[1], counts[0], indices, indptr=indptr)
    return reversed_edges.permute(ids).reverse()
