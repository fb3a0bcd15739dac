"""Counts the rows that chunks of a graph need (HongTu 2.4 and 5, Tables 3 and 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from peergraph.fullgraph.layout.blocks import balance_cost, cut_blocks
from peergraph.number_arguments import check_number

MAX_CHUNKS = 1 << 12
"""Chunks of a rank; loops run over all of them."""

_PIECE = 1 << 25


@dataclass(frozen=True)
class Duplication:
    """Rows that the chunks of all ranks read in one pass over a graph.

    A chunk needs the distinct sources of its edges and its own nodes. Chunks with the same number
    on all ranks are a batch, which is computed at the same time.

    Args:
        world_size: ranks.
        num_chunks: of each rank.
        num_nodes: of the graph.
        demand: rows of all chunks, each chunk's distinct rows counted.
        distinct: rows of all batches, each batch's distinct rows counted: what crosses the host
            links if ranks pass on rows to each other (HongTu 5.1, inter-GPU).
        loaded: the same without the rows that the batch before had (intra-GPU).
    """

    world_size: int
    num_chunks: int
    num_nodes: int
    demand: int
    distinct: int
    loaded: int

    @property
    def alpha(self) -> float:
        """The duplication factor: rows that chunks need, for each node."""
        return self.demand / max(1, self.num_nodes)

    @property
    def saved_between_ranks(self) -> float:
        """Rows that are not loaded because another rank loads them, for each node."""
        return (self.demand - self.distinct) / max(1, self.num_nodes)

    @property
    def saved_between_batches(self) -> float:
        """Rows that are not loaded because the batch before had them, for each node."""
        return (self.distinct - self.loaded) / max(1, self.num_nodes)


def cut_chunks(degrees: Tensor, counts: Sequence[int], num_chunks: int) -> list[list[int]]:
    """Cuts the nodes of each rank in chunks, balanced by nodes and in-edges. Synchronises.

    Args:
        degrees: [nodes] in-degrees, in the order of the internal rows.
        counts: nodes of each rank.
        num_chunks: of each rank.

    Returns:
        ``[ranks][num_chunks + 1]`` internal rows at which chunks begin and end.
    """
    check_number("num_chunks", num_chunks, 1, MAX_CHUNKS)
    cuts, start = [], 0
    for count in counts:
        sizes = cut_blocks(balance_cost(degrees[start : start + count]), num_chunks)
        offsets = [start]
        for size in sizes:
            offsets.append(offsets[-1] + size)
        cuts.append(offsets)
        start += count
    return cuts


def count_duplication(
    indptr: Tensor, indices: Tensor, cuts: Sequence[Sequence[int]]
) -> Duplication:
    """Counts the rows that chunks need. Synchronises.

    Takes three bytes for each node, and 200 MiB, on the device of the edges.

    Args:
        indptr: [nodes + 1] offsets of the in-edges of each internal row.
        indices: [edges] internal rows of sources, int32 or int64.
        cuts: [ranks][chunks + 1] as :func:`cut_chunks` returns it; as many chunks for each rank.
    """
    nodes, chunks = indptr.numel() - 1, len(cuts[0]) - 1
    if any(len(of_rank) != chunks + 1 for of_rank in cuts):
        raise ValueError(f"cuts must have as many chunks for each rank, got "
                         f"{[len(of_rank) - 1 for of_rank in cuts]}")  # fmt: skip
    device = indices.device
    mark = torch.zeros(nodes, dtype=torch.bool, device=device)
    union, before = torch.zeros_like(mark), torch.zeros_like(mark)
    totals = torch.zeros(3, dtype=torch.int64, device=device)
    edges = [indptr[torch.tensor(of_rank, device=indptr.device)].tolist() for of_rank in cuts]
    for chunk in range(chunks):
        union.zero_()
        for of_rank, edges_of_rank in zip(cuts, edges, strict=True):
            mark.zero_()
            mark[of_rank[chunk] : of_rank[chunk + 1]] = True
            ends = range(edges_of_rank[chunk], edges_of_rank[chunk + 1], _PIECE)
            for begin, end in pairwise([*ends, edges_of_rank[chunk + 1]]):
                mark[indices[begin:end].long()] = True
            totals[0] += mark.count_nonzero()
            union |= mark
        totals[1] += union.count_nonzero()
        totals[2] += (union & ~before).count_nonzero()
        union, before = before, union
    return Duplication(len(cuts), chunks, nodes, *totals.tolist())
