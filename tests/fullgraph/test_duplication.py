"""Counted rows that chunks need, against sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.duplication import count_duplication, cut_chunks


def graph(nodes: int, edges: int) -> Csc:
    generator = torch.Generator().manual_seed(3)
    ends = (torch.rand(2, edges, generator=generator) ** 2 * nodes).long()
    return Csc.from_edge_index(ends, nodes, nodes)


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (1, 7), (3, 4), (2, 30)])
def test_counts_equal_those_of_sets(ranks: int, chunks: int) -> None:
    csc = graph(50, 300)
    counts = [50 // ranks] * ranks
    counts[-1] += 50 - sum(counts)
    cuts = cut_chunks(csc.in_degrees(), counts, chunks)
    result = count_duplication(csc.indptr, csc.indices, cuts)
    demand, batches = 0, []
    for chunk in range(chunks):
        batch: set[int] = set()
        for of_rank in cuts:
            begin, end = of_rank[chunk], of_rank[chunk + 1]
            edges = csc.indices[csc.indptr[begin] : csc.indptr[end]]
            rows = {*range(begin, end), *edges.tolist()}
            demand += len(rows)
            batch |= rows
        batches.append(batch)
    assert result.demand == demand
    assert result.distinct == sum(map(len, batches))
    stay = sum(len(a & b) for a, b in pairwise(batches))
    assert result.loaded == result.distinct - stay
    assert result.alpha == demand / 50
    assert result.saved_between_ranks == pytest.approx((demand - result.distinct) / 50)
    assert result.saved_between_batches == pytest.approx(stay / 50)


def test_chunks_are_balanced_and_cover_all_nodes() -> None:
    csc = graph(1000, 20_000)
    cuts = cut_chunks(csc.in_degrees(), [600, 400], 5)
    assert [len(of_rank) for of_rank in cuts] == [6, 6]
    assert (cuts[0][0], cuts[0][-1], cuts[1][0], cuts[1][-1]) == (0, 600, 600, 1000)
    edges = [int(csc.indptr[b] - csc.indptr[a]) for a, b in pairwise(cuts[0])]
    nodes = [b - a for a, b in pairwise(cuts[0])]
    total = int(csc.indptr[600])
    # A chunk has at most twice the mean of either.
    assert max(edges) <= 2.2 * total / 5
    assert max(nodes) <= 2.2 * 600 / 5
    with pytest.raises(ValueError, match="as many chunks"):
        count_duplication(csc.indptr, csc.indices, [[0, 600], [600, 700, 1000]])


def test_empty_graph() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    result = count_duplication(torch.zeros(1, dtype=torch.int64), none, [[0, 0]])
    assert (result.demand, result.alpha) == (0, 0)
