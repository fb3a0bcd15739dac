"""The synthetic graphs: split over ranks or not, the same graph, with the degrees wanted."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("counter_hash", "graphs", "arrays")
    return {name: importlib.import_module(f"inputs.{name}") for name in names}


@pytest.mark.parametrize("world", [1, 3])
def test_parts_make_the_whole(modules: dict[str, ModuleType], world: int) -> None:
    graphs, counter_hash = modules["graphs"], modules["counter_hash"]
    spec = graphs.get_spec("tiny")
    indptr, indices = graphs.make_csc(spec, "cpu")
    assert indptr.numel() == spec.num_nodes + 1
    assert int(indptr[-1]) == indices.numel() == spec.num_edges
    assert int(indices.min()) >= 0
    assert int(indices.max()) < spec.num_nodes

    parts = [
        graphs.make_csc(spec, "cpu", spec.node_range(rank, world), torch.int64)
        for rank in range(world)
    ]
    assert torch.equal(torch.cat([part[1] for part in parts]), indices.long())
    degrees = torch.cat([part[0].diff() for part in parts])
    assert torch.equal(degrees, indptr.diff())
    begins = [int(indptr[spec.node_range(rank, world)[0]]) for rank in range(world)]
    sums = [counter_hash.checksum(part[1], at) for part, at in zip(parts, begins, strict=True)]
    assert sum(sums) % 2**64 == counter_hash.checksum(indices)


def test_degrees_follow_the_weights(modules: dict[str, ModuleType]) -> None:
    graphs = modules["graphs"]
    spec = graphs.get_spec("tiny")
    indptr, indices = graphs.make_csc(spec, "cpu")
    in_degree = indptr.diff().double()
    out_degree = torch.bincount(indices, minlength=spec.num_nodes).double()
    assert torch.corrcoef(torch.stack([in_degree, out_degree]))[0, 1] > 0.9
    # A lognormal's median is its mean over exp(sigma^2 / 2); a small graph's degrees are coarse.
    expected = in_degree.mean() / torch.exp(torch.tensor(spec.sigma**2 / 2))
    assert in_degree.median() == pytest.approx(float(expected), rel=0.25)


def test_scaled_preset(modules: dict[str, ModuleType]) -> None:
    get_spec = modules["graphs"].get_spec
    whole, quarter = get_spec("papers"), get_spec("papers/4")
    assert quarter.num_nodes == whole.num_nodes // 4
    assert quarter.num_edges == whole.num_edges // 4
    with pytest.raises(ValueError, match="unknown graph 'paper'"):
        get_spec("paper")


def test_inputs(modules: dict[str, ModuleType]) -> None:
    inputs, spec = modules["arrays"], modules["graphs"].get_spec("tiny")
    rows = inputs.fill_features(7, torch.empty(50, 33))
    ids = torch.tensor([7, 56, 30])
    assert torch.equal(inputs.feature_rows(ids, 33), rows[ids - 7])
    assert -1 <= float(rows.min()) < float(rows.max()) < 1
    inputs.check_rows("rows", rows, torch.arange(7, 57))
    with pytest.raises(AssertionError, match="rows differ"):
        inputs.check_rows("rows", rows, torch.arange(50))
    seeds = [
        inputs.batch_nodes(spec, step, 100, rank, 2, torch.device("cpu"))
        for step in range(5)
        for rank in range(2)
    ]
    assert torch.cat(seeds).unique().numel() == 1000


def test_arrangements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    graphs = importlib.import_module("inputs.gcn_graph")
    edges = {}
    for name in ("tiny", "tiny:sorted", "tiny:communities", "tiny*2"):
        spec, arrangement = graphs.parse_name(name)
        graph = graphs.make_gcn_graph(spec, torch.device("cpu"), arrangement)
        edges[name], degrees = graph.num_edges, graph.indptr.diff()
        nodes = torch.arange(graph.num_nodes).repeat_interleave(degrees)
        keys = nodes * graph.num_nodes + graph.indices
        assert torch.equal(keys, keys.unique())
        assert torch.equal(keys, torch.sort(graph.indices * graph.num_nodes + nodes)[0])
        if arrangement == "sorted":  # Repeated pairs were counted before they were left out.
            assert int(degrees[:100].min()) > 4 * int(degrees[1000:].median())
            assert int(degrees[:10_000].sum()) > 3 * int(degrees[10_000:].sum())
    assert edges["tiny:sorted"] == edges["tiny"]
    assert edges["tiny*2"] > 1.9 * edges["tiny"]
    with pytest.raises(ValueError, match="unknown arrangement 'tall'"):
        graphs.parse_name("tiny:tall")
