"""The typed graphs of rgat.py, compared with a plain sort of all edges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [BENCHMARKS, *sys.path])


CPU = torch.device("cpu")


def edges_of(graph, stored, world):
    """[2, edges] of all ranks, in their order."""
    from rgat_shape.edges import make_csc

    nodes, parts = graph.nodes[stored.type[2]], []
    for rank in range(world):
        begin, end = nodes * rank // world, nodes * (rank + 1) // world
        indptr, indices = make_csc(graph, stored, (begin, end), CPU)
        assert indptr.numel() == end - begin + 1
        destinations = torch.arange(begin, end).repeat_interleave(indptr.diff())
        parts.append(torch.stack([indices.long(), destinations]))
    return torch.cat(parts, 1)


def ordered(edges: torch.Tensor) -> list[tuple[int, int]]:
    return sorted(map(tuple, edges.T.tolist()))


def test_reverses_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from rgat_shape import edges as edge_module
    from rgat_shape.graph import GRAPHS

    graph = GRAPHS["full.371"].scaled(2e-6)
    # Each rank sorts its edges in several parts, drawn in several chunks.
    whole = {s.type: edges_of(graph, s, 1) for s in graph.stored}
    monkeypatch.setattr(edge_module, "_SORTED_EDGES", 500)
    monkeypatch.setattr(edge_module, "CHUNK", 300)
    for stored in graph.stored:
        result = whole[stored.type]
        assert torch.equal(edges_of(graph, stored, 3), result)
        assert result.shape[1] == graph.num_edges(stored)
        source, name, destination = stored.type
        assert int(result[0].max()) < graph.nodes[source]
        if stored.self_loops:
            assert ordered(result) == ordered(result.flip(0))
            loops = torch.bincount(result[0][result[0] == result[1]], minlength=graph.nodes[source])
            assert int(loops.min()) >= 1
        elif not name.startswith("rev_"):
            reverse = whole[destination, f"rev_{name}", source]
            assert ordered(result) == ordered(reverse.flip(0))
    assert len(whole) == 11


@pytest.mark.parametrize(("exponent", "share"), [(0.0, 0.001), (0.55, 0.0171), (1.0, 0.1003)])
def test_power_law(exponent: float, share: float) -> None:
    """The most frequent of 1000 nodes has the share of the continuous law: that of [1, 2) of the
    integral over [1, 1001).
    """
    from inputs.counter_hash import hash_range, stream_key
    from rgat_shape.edges import _draw

    drawn = _draw(hash_range(stream_key(1, 2), 0, 1 << 20, CPU), 1000, exponent)
    counts = torch.bincount(drawn, minlength=1000)
    assert int(counts.min()) > 0
    assert int(counts.max()) / (1 << 20) == pytest.approx(share, rel=0.15)


def test_seeds_differ() -> None:
    from rgat_shape.graph import GRAPHS
    from rgat_shape.source import seed_nodes

    graph = GRAPHS["full.371"].scaled(1e-5)
    seeds = torch.cat([seed_nodes(graph, range(4), 16, rank, 2) for rank in range(2)])
    assert seeds.unique().numel() == seeds.numel() == 128
    assert int(seeds.max()) < graph.labelled * graph.nodes["paper"]


def test_rows_are_the_same_in_parts() -> None:
    from rgat_shape.source import feature_rows

    whole = feature_rows(3, 0, 40, 20, torch.bfloat16, CPU)
    assert torch.equal(feature_rows(3, 7, 19, 20, torch.bfloat16, CPU), whole[7:19])
    assert whole.abs().max() <= 2
    assert whole.unique(dim=0).shape[0] == 40
