"""The result of k-hop sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.sampling.lazy_dict import LazyDict

NodeType = str
EdgeType = tuple[str, str, str]


@dataclass
class Block:
    """One relation of one hop as CSC: the in-neighbours that were sampled for each target.

    Target ``k`` is row ``first_target + k`` of the sample's nodes of the destination type, and its
    edges are ``row[indptr[k]:indptr[k + 1]]``.

    Args:
        indptr: [targets + 1], dtype of ``row``.
        row: [edges] sources, as rows of the sample's nodes of the source type.
        edge_ids: [edges] int64 the user's edge ids, None unless the sampler returns them.
        first_target: row of the first target.
    """

    indptr: Tensor
    row: Tensor
    edge_ids: Tensor | None
    first_target: int

    @property
    def num_targets(self) -> int:
        """The number of nodes that the hop expanded by this relation."""
        return self.indptr.numel() - 1


class SampleArrays(NamedTuple):
    """Arrays whose parts are the tensors of all relations of a sample.

    Args:
        edge_index: [2 * edges] of each relation the sources, then the destinations.
        offsets: of each hop, the `indptr` of each relation.
        ready: an event that a GPU reaches after the kernels that write them; None: these run in the
            stream that was current when the sample was made.
    """

    edge_index: Tensor
    offsets: Tensor
    ready: torch.cuda.Event | None = None


@dataclass
class Sample:
    """The result of :meth:`NeighborSampler.sample`; all tensors on the store's device. The tensors
    in `row`, `col` and `indptr` are made when the dicts are first used.

    Args:
        nodes: by node type, int64 user ids: seeds first and in order, then by first appearance.
        row: by edge type, sources of the edges as positions in ``nodes`` of the source type, in
            hop order and grouped by destination; dtype ``index_dtype``.
        col: by edge type, destinations of the same edges.
        edge_ids: by edge type, int64 the user's edge ids; None unless the sampler returns them.
        batch: disjoint samples only: by node type, int64 index of the seed that each node belongs
            to (seeds of several types are numbered in the order in which they were given).
        duplicate_counts: by node type, int32: how often the node was sampled as a neighbour, over
            all hops (WholeGraph III-C4); None unless the sampler returns them.
        num_sampled_nodes: by node type, nodes found: seeds, hop 1, ... (one more than hops).
        num_sampled_edges: by edge type, edges of each hop; one number for an induced subgraph.
        indptr: by edge type and hop, int64 `indptr` of :meth:`block`.
        first_target: by edge type and hop, `first_target` of :meth:`block`.
    """

    nodes: dict[NodeType, Tensor]
    row: dict[EdgeType, Tensor]
    col: dict[EdgeType, Tensor]
    edge_ids: dict[EdgeType, Tensor] | None
    batch: dict[NodeType, Tensor] | None
    duplicate_counts: dict[NodeType, Tensor] | None
    num_sampled_nodes: dict[NodeType, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]
    indptr: dict[EdgeType, list[Tensor]] = field(repr=False)
    first_target: dict[EdgeType, list[int]] = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    @property
    def arrays(self) -> SampleArrays | None:
        """The arrays of which `row`, `col` and `indptr` are parts, as long as nobody has used these
        dicts; else None, as the dicts may have been changed.
        """
        dicts = self.row, self.col, self.indptr
        unused = all(isinstance(each, LazyDict) and not each.is_made for each in dicts)
        return self.__dict__.get("_arrays") if unused else None  # no field of the dataclass

    @arrays.setter
    def arrays(self, arrays: SampleArrays) -> None:
        self.__dict__["_arrays"] = arrays

    @property
    def num_hops(self) -> int:
        """The number of hops; 1 for an induced subgraph, whose edges are one block."""
        return max((len(edges) for edges in self.num_sampled_edges.values()), default=0)

    def block(self, hop: int, edge_type: EdgeType | None = None) -> Block:
        """Returns the CSC block of a hop (0 is the first, nearest to the seeds) and a relation.

        Args:
            hop: ``0 .. num_hops - 1``.
            edge_type: may be left out when there is one relation.

        Raises:
            IndexError: no such hop.
            KeyError: no such relation.
            ValueError: `edge_type` left out though there are several relations.
        """
        if edge_type is None:
            if len(self.row) != 1:
                raise ValueError(f"edge_type: one of {list(self.row)} is needed")
            (edge_type,) = self.row
        counts = self.num_sampled_edges[edge_type]
        if not 0 <= hop < len(counts):
            raise IndexError(f"hop: {hop} is not in 0..{len(counts) - 1}")
        begin = sum(counts[:hop])
        edges = slice(begin, begin + counts[hop])
        row = self.row[edge_type][edges]
        return Block(
            indptr=self.indptr[edge_type][hop].to(row.dtype),
            row=row,
            edge_ids=None if self.edge_ids is None else self.edge_ids[edge_type][edges],
            first_target=self.first_target[edge_type][hop],
        )
