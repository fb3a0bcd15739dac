"""Samples of a static shape beside others, and what their padding must be."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from peergraph.sampling import Sample, StaticShapeSample


def same(got: Mapping[object, object] | None, want: Mapping[object, object] | None) -> bool:
    if got is None or want is None:
        return got is want
    return all(
        torch.equal(a, b) and a.dtype == b.dtype
        for a, b in zip(flat(got.values()), flat(want.values()), strict=True)
    )


def flat(values: object) -> list[torch.Tensor]:
    return [t for v in values for t in (v if isinstance(v, list) else [v])]


def assert_same_sample(got: Sample, want: Sample) -> None:
    assert got.num_sampled_nodes == want.num_sampled_nodes
    assert got.num_sampled_edges == want.num_sampled_edges
    assert got.first_target == want.first_target
    for name in ("nodes", "row", "col", "edge_ids", "batch", "duplicate_counts"):
        assert same(getattr(got, name), getattr(want, name)), name


def assert_padded(fixed: StaticShapeSample) -> None:
    """What is documented to lie behind the counts does."""
    shape = fixed.shape
    for t, rows in shape.rows_per_hop.items():
        assert fixed.nodes[t].numel() == sum(rows)
        used = torch.zeros(sum(rows), dtype=torch.bool)
        for begin, count in zip(shape.row_offsets(t), fixed.num_nodes[t].tolist(), strict=False):
            used[begin : begin + count] = True
        assert not used[shape.padding_row(t)]
        assert bool((fixed.nodes[t].cpu()[~used] == -1).all())
        if fixed.batch is not None:
            assert bool((fixed.batch[t].cpu()[~used] == -1).all())
        if fixed.duplicate_counts is not None:
            assert bool((fixed.duplicate_counts[t].cpu()[~used] == 0).all())
    for t, room in shape.edges_per_hop.items():
        assert fixed.row[t].numel() == fixed.col[t].numel() == sum(room)
        begins = shape.edge_offsets(t)
        for hop, count in enumerate(fixed.num_edges[t].tolist()):
            padding = slice(begins[hop] + count, begins[hop + 1])
            assert fixed.row[t][padding].tolist() == padding_ends(fixed, hop, t, t[0])
            assert fixed.col[t][padding].tolist() == padding_ends(fixed, hop, t, t[2])
            if fixed.edge_ids is not None:
                assert bool((fixed.edge_ids[t][padding] == -1).all())
            assert_block(fixed, hop, t, count)


def padding_ends(
    fixed: StaticShapeSample, hop: int, t: tuple[str, str, str], node_type: str
) -> list[int]:
    """Returns an end of each padding edge of a hop: padding of the type's last rows before the hop,
    in equal shares.
    """
    shape = fixed.shape
    edges = shape.edges_per_hop[t][hop] - int(fixed.num_edges[t][hop])
    begin, end = shape.row_offsets(node_type)[hop : hop + 2]
    rows = range(begin + int(fixed.num_nodes[node_type][hop]), end)
    if not rows:
        return [shape.padding_row(node_type)] * edges
    shares = [(k + 1) * edges // len(rows) - k * edges // len(rows) for k in range(len(rows))]
    return [row for row, share in zip(rows, shares, strict=True) for _ in range(share)]


def assert_block(
    fixed: StaticShapeSample, hop: int, edge_type: tuple[str, str, str], count: int
) -> None:
    """The block has the same edges in CSC, padding included if it ends at targets of the hop."""
    block = fixed.block(hop, edge_type)
    degrees = block.indptr.diff()
    assert int(block.indptr[0]) == 0
    begin, end = fixed.shape.row_offsets(edge_type[2])[hop : hop + 2]
    if int(fixed.num_nodes[edge_type[2]][hop]) < end - begin:
        count = fixed.shape.edges_per_hop[edge_type][hop]
    assert int(block.indptr[-1]) == count
    targets = torch.arange(block.num_targets, device=degrees.device) + block.first_target
    begin = fixed.shape.edge_offsets(edge_type)[hop]
    col = fixed.col[edge_type][begin : begin + count]
    assert torch.equal(targets.repeat_interleave(degrees).to(col.dtype), col)
