"""A k-hop sample of a static shape, and its conversion to an ordinary sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from peergraph.sampling.sample import Block, EdgeType, NodeType, Sample


@dataclass(frozen=True)
class StaticShape:
    """The capacities of a sample of a static shape.

    Args:
        rows_per_hop: by node type, the rows of the seeds and the padding row, of hop 1, ...
        edges_per_hop: by edge type, the edges of each hop.
    """

    rows_per_hop: dict[NodeType, list[int]]
    edges_per_hop: dict[EdgeType, list[int]]

    def padding_row(self, node_type: NodeType) -> int:
        """Returns the row that is always padding."""
        return self.rows_per_hop[node_type][0] - 1

    def row_offsets(self, node_type: NodeType) -> list[int]:
        """Returns the first row of each segment of rows, and at the end the number of all rows."""
        return [0, *accumulate(self.rows_per_hop[node_type])]

    def edge_offsets(self, edge_type: EdgeType) -> list[int]:
        """Returns the position of each hop's first edge, and at the end the number of all edges."""
        return [0, *accumulate(self.edges_per_hop[edge_type])]


@dataclass
class StaticShapeSample:
    """The result of :meth:`StaticShapeSampler.sample`; all tensors on the store's device.

    Without its padding it is the :class:`Sample` of the same seeds: :meth:`compact`.

    Args:
        nodes: by node type, int64 user ids: a segment of rows for the seeds, one row that is always
            padding (the padding row), and a segment for the new nodes of each hop. Padding is at
            the end of each segment and is -1 (``Table.gather(nodes, padded=True)``), or the id of
            the first seed if the sampler has ``valid_padding``.
        edge_index: by edge type, [2, edges] of the sampler's index dtype: sources and destinations
            of the edges as positions in ``nodes``, with a segment for the edges of each hop.
            Padding is behind the edges of its hop. It goes, evenly, from the padding at the end of
            the rows that the source type has before the hop to the padding at the end of the hop's
            targets; where there is none, it is the type's padding row.
        edge_ids: by edge type, int64 the user's edge ids, -1 for padding, or 0 with
            ``valid_padding``; None unless the sampler returns them.
        batch: disjoint samples only: by node type, int64 the position among the seeds (of all
            types, in the order in which they were given) that a node belongs to, -1 for padding.
        duplicate_counts: by node type, int32: how often the node was sampled; 0 for padding.
        num_nodes: by node type, int64 [hops + 1]: number of seeds, of new nodes of hop 1, ...
        num_edges: by edge type, int64 [hops]: edges of each hop.
        num_drawn_edges: the same before edges were excluded.
        shape: the capacities, the same for all samples of a sampler.
        indptr: by edge type and hop, int64 `indptr` of :meth:`block`.
        first_target: by edge type and hop, `first_target` of :meth:`block`.
    """

    nodes: dict[NodeType, Tensor]
    edge_index: dict[EdgeType, Tensor]
    edge_ids: dict[EdgeType, Tensor] | None
    batch: dict[NodeType, Tensor] | None
    duplicate_counts: dict[NodeType, Tensor] | None
    num_nodes: dict[NodeType, Tensor]
    num_edges: dict[EdgeType, Tensor]
    num_drawn_edges: dict[EdgeType, Tensor]
    shape: StaticShape
    indptr: dict[EdgeType, list[Tensor]] = field(repr=False)
    first_target: dict[EdgeType, list[int]] = field(repr=False)

    @property
    def row(self) -> dict[EdgeType, Tensor]:
        """By edge type, the sources of the edges, ``edge_index[edge_type][0]``."""
        return {t: edges[0] for t, edges in self.edge_index.items()}

    @property
    def col(self) -> dict[EdgeType, Tensor]:
        """By edge type, the destinations of the edges, ``edge_index[edge_type][1]``."""
        return {t: edges[1] for t, edges in self.edge_index.items()}

    def is_padding(self, node_type: NodeType) -> Tensor:
        """Returns [rows] bool: which rows of a type are padding. Synchronises with a GPU."""
        rows, counts = self.shape.rows_per_hop[node_type], self.num_nodes[node_type]
        return ~_used(rows, counts.tolist(), counts.device)

    def block(self, hop: int, edge_type: EdgeType | None = None) -> Block:
        """Returns the CSC block of a hop and a relation, as :meth:`Sample.block` gives it.

        The padding edges of the hop belong to the padding at the end of its targets. If its targets
        end without padding, `row` and `edge_ids` are padding from ``indptr[-1]`` on.

        Raises:
            IndexError: no such hop.
            KeyError: no such relation.
            ValueError: `edge_type` left out though there are several relations.
        """
        if edge_type is None:
            if len(self.edge_index) != 1:
                raise ValueError(f"edge_type: one of {list(self.edge_index)} is needed")
            (edge_type,) = self.edge_index
        begins = self.shape.edge_offsets(edge_type)
        if not 0 <= hop < len(begins) - 1:
            raise IndexError(f"hop: {hop} is not in 0..{len(begins) - 2}")
        edges = slice(begins[hop], begins[hop + 1])
        row = self.edge_index[edge_type][0, edges]
        return Block(
            indptr=self.indptr[edge_type][hop].to(row.dtype),
            row=row,
            edge_ids=None if self.edge_ids is None else self.edge_ids[edge_type][edges],
            first_target=self.first_target[edge_type][hop],
        )

    def compact(self) -> Sample:
        """Returns the sample without its padding. Synchronises with a GPU."""
        return _Compaction(self).to_sample()


class _Compaction:
    """One call of :meth:`StaticShapeSample.compact`."""

    def __init__(self, fixed: StaticShapeSample) -> None:
        self.fixed = fixed
        self.num_nodes = {t: counts.tolist() for t, counts in fixed.num_nodes.items()}
        self.num_edges = {t: counts.tolist() for t, counts in fixed.num_edges.items()}
        self.used = {
            t: _used(fixed.shape.rows_per_hop[t], counts, fixed.nodes[t].device)
            for t, counts in self.num_nodes.items()
        }

    def to_sample(self) -> Sample:
        fixed = self.fixed
        row, col = fixed.row, fixed.col
        edges = {
            t: _used(fixed.shape.edges_per_hop[t], counts, row[t].device)
            for t, counts in self.num_edges.items()
        }
        # Padding rows get an arbitrary row, which no edge names.
        new_row = {t: (used.cumsum(0) - 1).clamp(min=0) for t, used in self.used.items()}
        return Sample(
            nodes={t: ids[self.used[t]] for t, ids in fixed.nodes.items()},
            row={t: new_row[t[0]][row[t][e]].to(row[t].dtype) for t, e in edges.items()},
            col={t: new_row[t[2]][col[t][e]].to(col[t].dtype) for t, e in edges.items()},
            edge_ids=None
            if fixed.edge_ids is None
            else {t: ids[edges[t]] for t, ids in fixed.edge_ids.items()},
            batch=None
            if fixed.batch is None
            else {t: trees[self.used[t]] for t, trees in fixed.batch.items()},
            duplicate_counts=None
            if fixed.duplicate_counts is None
            else {t: c[self.used[t]] for t, c in fixed.duplicate_counts.items()},
            num_sampled_nodes=self.num_nodes,
            num_sampled_edges=self.num_edges,
            indptr={
                t: [self._indptr(t, hop) for hop in range(len(indptrs))]
                for t, indptrs in fixed.indptr.items()
            },
            first_target={
                t: [int(self.used[t[2]][:first].sum()) for first in firsts]
                for t, firsts in fixed.first_target.items()
            },
        )

    def _indptr(self, edge_type: EdgeType, hop: int) -> Tensor:
        indptr = self.fixed.indptr[edge_type][hop]
        first = self.fixed.first_target[edge_type][hop]
        targets = self.used[edge_type[2]][first : first + indptr.numel() - 1]
        degrees = indptr.diff()[targets]
        return torch.cat([indptr[:1], degrees.cumsum(0)])


def _used(capacities: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Marks the items of segments that are no padding."""
    used = torch.zeros(sum(capacities), dtype=torch.bool, device=device)
    for begin, count in zip([0, *accumulate(capacities)], counts, strict=False):
        used[begin : begin + count] = True
    return used
