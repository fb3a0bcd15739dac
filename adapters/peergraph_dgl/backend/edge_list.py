"""The edges of one relation as torch tensors, on any device."""

from __future__ import annotations

from typing import Any

import dgl.heterograph_index as dgl_index
import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from peergraph.aggregate import Csc, is_arange, row_of_edges


class Relation:
    """Edges from `num_src` to `num_dst` nodes; edge `i` is the i-th of the tensors given.

    Everything else (degrees, the structure of the kernels, the reverse) is made when first asked
    for, and kept.

    Args:
        num_src, num_dst: nodes at the two ends.
        src: [edges] int32 or int64.
        dst: [edges] of the same dtype and device; may be left out if there is `indptr`.
        indptr: [num_dst + 1] int32 or int64, where the edges are grouped by destination.
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
        self._structure: Csc | None = None
        self._reverse: Relation | None = None
        self._by_destination: tuple[Tensor, Tensor, Tensor] | None = None
        self._in_degrees: Tensor | None = None
        self._out_degrees: Tensor | None = None
        self._empty_rows: Tensor | None = None

    @property
    def num_edges(self) -> int:
        return self.src.numel()

    @property
    def device(self) -> torch.device:
        return self.src.device

    @property
    def dst(self) -> Tensor:
        """[edges] destinations."""
        if self._dst is None:
            assert self._indptr is not None
            self._dst = row_of_edges(self._indptr, self.num_edges, self.src.dtype)
        return self._dst

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that lies in memory."""
        kept = (self.src, self._dst, self._indptr)
        return tuple(tensor for tensor in kept if tensor is not None)

    def structure(self) -> Csc:
        """What the kernels run over: edge tensors are in the order of the edges."""
        csc = self._csc()
        csc.count_use()
        return csc

    def _csc(self) -> Csc:
        if self._structure is None:
            if self._indptr is not None:
                self._structure = Csc(
                    self._indptr, self.src, self.num_src, transient=None, check=False
                )
            else:
                self._structure = Csc.from_coo(
                    self.src, self.dst, self.num_dst, self.num_src, transient=None
                )
        return self._structure

    def reverse(self) -> Relation:
        """The same edges from destinations to sources."""
        if self._reverse is None:
            self._reverse = Relation(self.num_dst, self.num_src, self.dst, self.src)
        return self._reverse

    def in_order(self, edge_ids: Tensor) -> Relation:
        """Edge `edge_ids[i]` of the new relation is edge `i` of this one; no ids: the same."""
        if is_arange(edge_ids.contiguous()):
            return self
        at = edge_ids.long()
        src, dst = torch.empty_like(self.src), torch.empty_like(self.dst)
        src[at], dst[at] = self.src, self.dst
        return Relation(self.num_src, self.num_dst, src, dst)

    def by_destination(self) -> tuple[Tensor, Tensor, Tensor]:
        """indptr, sources and edge ids, grouped by destination."""
        if self._by_destination is None:
            rows = self._csc()
            ids = rows.edge_ids
            if ids is None:
                ids = torch.arange(self.num_edges, dtype=self.src.dtype, device=self.device)
            dtype = self.src.dtype
            self._by_destination = rows.indptr.to(dtype), rows.indices.to(dtype), ids.to(dtype)
        return self._by_destination

    def in_degrees(self) -> Tensor:
        """[num_dst] edges of each destination."""
        if self._in_degrees is None:
            self._in_degrees = self._csc().in_degrees().to(self.src.dtype)
        return self._in_degrees

    def empty_rows(self) -> Tensor:
        """Destinations without edges; a GPU is waited for, to know how many."""
        if self._empty_rows is None:
            # NumPy finds them in a tenth of torch's time for the rows of a mini-batch.
            offsets = self._csc().indptr.cpu().numpy()
            empty = np.flatnonzero(offsets[1:] == offsets[:-1])
            self._empty_rows = torch.from_numpy(empty).to(self.device)
        return self._empty_rows

    def out_degrees(self) -> Tensor:
        """[num_src] edges of each source."""
        if self._out_degrees is None:
            counts = torch.bincount(self.src, minlength=self.num_src)
            self._out_degrees = counts.to(self.src.dtype)
        return self._out_degrees

    def library_index(self) -> Any:
        """DGL's own index of the relation as one of two node types; shares the memory."""
        ends = (2, self.num_src, self.num_dst)
        formats = ["coo", "csr", "csc"]
        if self._indptr is None:
            return dgl_index.create_unitgraph_from_coo(*ends, self.src, self.dst, formats)
        # Some of DGL's kernels want edge ids where it leaves them out itself.
        ids = torch.arange(self.num_edges, dtype=self.src.dtype, device="cpu")
        indptr = self._indptr
        return dgl_index.create_unitgraph_from_csr(*ends, indptr, self.src, ids, formats, True)

    def to(self, device: torch.device, dtype: torch.dtype) -> Relation:
        """A copy on another device, or with ids of another dtype."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, dtype, non_blocking=True)

        src = moved(self.src)
        assert src is not None
        if self._indptr is not None:
            return Relation(self.num_src, self.num_dst, src, indptr=moved(self._indptr))
        return Relation(self.num_src, self.num_dst, src, moved(self._dst))

    def in_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, destinations and ids of the edges into `nodes`, one node after the other."""
        indptr, indices, edge_ids = self.by_destination()
        nodes = nodes.long()
        counts = (indptr[nodes + 1] - indptr[nodes]).long()
        ends = counts.cumsum(0)
        total = int(ends[-1]) if nodes.numel() else 0
        first = torch.repeat_interleave(
            indptr[nodes].long() - (ends - counts), counts, output_size=total
        )
        at = first + torch.arange(total, device=self.device)
        dst = torch.repeat_interleave(nodes, counts, output_size=total).to(self.src.dtype)
        return indices[at], dst, edge_ids[at]


def relation_of(index: Any, etype: int) -> Relation:
    """The edges of one relation of DGL's own index, in the order of their ids."""
    source, destination = index.metagraph.find_edge(etype)
    ends = index.num_nodes(source), index.num_nodes(destination)
    if not index.num_edges(etype):
        src, dst, _ = index.edges(etype)
        return Relation(*ends, src, dst)
    # By the functions that DGL's methods call: those ask the library for much else, and blocks of
    # mini-batches are as new as often as they are used.
    created = set(dgl_index._CAPI_DGLHeteroGetCreatedFormats(index))
    if "coo" in created:
        of_edges = dgl_index._CAPI_DGLHeteroEdges(index, etype, "eid")
        return Relation(*ends, _tensor(of_edges(0)), _tensor(of_edges(1)))
    # Edges by destination are what the kernels take; DGL would make a list of both ends, if the
    # formats of the graph allow that.
    by_destination = "csc" in created
    of_adjacency = dgl_index._CAPI_DGLHeteroGetAdj(index, etype, by_destination, "csr")
    indptr, others, ids = (_tensor(of_adjacency(part)) for part in range(3))
    if by_destination:
        return Relation(*ends, others, indptr=indptr).in_order(ids)
    turned = Relation(ends[1], ends[0], others, indptr=indptr)
    return turned.in_order(ids).reverse()


def _tensor(array: Any) -> Tensor:
    """An array of DGL's that is not empty, without a copy."""
    return from_dlpack(array.to_dlpack())
