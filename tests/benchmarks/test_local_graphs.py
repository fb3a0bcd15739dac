"""Synthetic graphs with locality: sizes, degrees, and the published duplication factors."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from peergraph.fullgraph.layout.duplication import count_duplication, cut_chunks

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# HongTu's Table 3, for 32, 128 and 512 parts.
PUBLISHED = {
    "it-2004": (1.60, 1.71, 1.85),
    "papers100m": (4.46, 8.50, 12.3),
    "friendster": (5.48, 10.7, 18.1),
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("inputs.local_graphs")


@pytest.mark.parametrize("name", PUBLISHED)
def test_duplication_is_the_published_one(graphs: ModuleType, name: str) -> None:
    spec = graphs.get_local_spec(f"{name}/1000")
    indptr, indices = graphs.make_local_csc(spec, "cpu")
    assert indptr.numel() == spec.num_nodes + 1
    assert int(indptr[-1]) == indices.numel() == spec.num_edges
    assert int(indices.min()) >= 0
    assert int(indices.max()) < spec.num_nodes
    degrees = indptr.diff()
    for parts, published in zip((32, 128), PUBLISHED[name], strict=False):
        cuts = cut_chunks(degrees, [spec.num_nodes], parts)
        result = count_duplication(indptr, indices, cuts)
        assert result.alpha == pytest.approx(published, rel=0.1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_expected_duplication_of_the_whole_graph(graphs: ModuleType, name: str) -> None:
    spec = graphs.get_local_spec(name)
    shares, degrees = list(graphs.level_shares(spec)), graphs.expected_degrees(spec)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0
    for parts_log2, published in zip((5, 7, 9), PUBLISHED[name], strict=True):
        result = graphs.expected_alpha(shares, parts_log2, degrees)
        assert result == pytest.approx(published, rel=0.1)


def test_parts_make_the_whole(graphs: ModuleType) -> None:
    spec = graphs.get_local_spec("papers100m/20000")
    indptr, indices = graphs.make_local_csc(spec, "cpu")
    bounds = [spec.node_range(rank, 3) for rank in range(3)]
    parts = [graphs.make_local_csc(spec, "cpu", nodes, torch.int64) for nodes in bounds]
    assert torch.equal(torch.cat([part[1] for part in parts]), indices.long())
    assert torch.equal(torch.cat([part[0].diff() for part in parts]), indptr.diff())


def test_degrees_follow_the_law(graphs: ModuleType) -> None:
    spec = graphs.get_local_spec("friendster/1000")
    indptr, indices = graphs.make_local_csc(spec, "cpu")
    in_degree = indptr.diff().double()
    out_degree = torch.bincount(indices.long(), minlength=spec.num_nodes).double()
    assert torch.corrcoef(torch.stack([in_degree, out_degree]))[0, 1] > 0.9
    expected = float(in_degree.mean() / torch.exp(torch.tensor(spec.sigma**2 / 2)))
    for degrees in (in_degree, out_degree):
        assert float(degrees.median()) == pytest.approx(expected, rel=0.15)
    assert float(in_degree.max()) > 15 * float(in_degree.mean())


def test_presets(graphs: ModuleType) -> None:
    sizes = {name: spec.num_edges for name, spec in graphs.LOCAL_PRESETS.items()}
    assert sizes["papers100m"] == 1_615_685_872
    assert graphs.get_local_spec("products/10").num_nodes == 244_902
    # Without published factors there is no locality.
    assert graphs.level_shares(graphs.get_local_spec("products"))[0] == 1
    with pytest.raises(ValueError, match="unknown graph 'paper'; there are it-2004"):
        graphs.get_local_spec("paper")
    with pytest.raises(ValueError, match="unknown graph 'tiny/x'"):
        graphs.get_local_spec("tiny/x")
