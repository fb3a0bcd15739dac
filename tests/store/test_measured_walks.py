"""Measured reads of walks, of samples of a static shape, and of features that are read in place."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import TableRows
from peergraph.sampling import NeighborSampler, PinSageSampler, RandomWalker, StaticShapeSampler
from peergraph.store import EDGE, EdgeType, ReadReport, Store
from tests.named_case import named_case
from tests.store.counted_reads import expected_sources, internal, positions
from tests.store.graphs import build, heterogeneous_source, homogeneous_source

PLANS = ["replicated", "mixed"]
OPTIONS: list[dict[str, Any]] = [{}, {"dead_end": "pad"}, {"restart_prob": 0.5}]


def assert_lists(report: ReadReport, store: Store, edge_type: EdgeType, reads: Tensor) -> None:
    """The lists of these user ids were read, once for each time they are named."""
    item = report.item("structure", "-".join(edge_type))
    rows = internal(store, edge_type[2], reads)
    tiers = store.csc(edge_type).tiers
    assert item.reads == (tuple(expected_sources(store, rows, tiers, 0)),)


@pytest.mark.parametrize("plan", PLANS)
def test_walks(plan: str, device: torch.device) -> None:
    for edge_ids, options in product([False, True], OPTIONS):
        with named_case("edge ids", edge_ids, options):
            source = homogeneous_source(200, 300)  # many lists are empty
            with build(source, plan, device=device) as store:
                walker = RandomWalker(store, edge_ids=edge_ids)
                starts = torch.arange(200)
                expected = walker.walk(starts, 5, 3, **options)
                steps = RandomWalker(store, edge_ids=True).walk(starts, 5, 3, **options).edge_ids
                assert steps is not None
                with store.measure() as measured:
                    walks = walker.walk(starts, 5, 3, **options)
                assert torch.equal(walks.nodes, expected.nodes)
                assert (walks.edge_ids is None) == (expected.edge_ids is None)
                if expected.edge_ids is not None:
                    assert torch.equal(walks.edge_ids, expected.edge_ids)
                steps = steps.cpu() >= 0
                read = steps
                if not options.get("restart_prob"):
                    read = torch.cat([torch.ones(200, 1, dtype=torch.bool), steps[:, :-1]], dim=1)
                report = measured.result()
                assert report.batches == (1,)
                assert_lists(report, store, EDGE, expected.nodes.cpu()[:, :-1][read])
                moved = 32 * (2 * int(read.sum()) + int(steps.sum()))
                assert sum(report.item("structure", "_N-_E-_N").read_bytes[0]) == moved
                if edge_ids and store.csc().edge_ids is not None:
                    table = store.csc().edge_ids
                    assert table is not None
                    assert expected.edge_ids is not None
                    rows = positions(store, EDGE, expected.edge_ids.cpu()[steps])
                    item = report.item("edge ids", "_N-_E-_N")
                    assert item.reads == (tuple(expected_sources(store, rows, table.tiers, 0)),)
                assert "not seen: workers of a DataLoader" in str(measured)


@pytest.mark.parametrize("plan", PLANS)
def test_walks_along_a_metapath(plan: str, device: torch.device) -> None:
    with build(heterogeneous_source(10), plan, device=device) as store:
        pairs = [(a, b) for a in store.edge_types for b in store.edge_types if a[0] == b[2]]
        assert pairs
        for path in pairs:
            walker = RandomWalker(store, list(path), edge_ids=True)
            starts = torch.arange(store.num_nodes(path[0][2]))
            expected = walker.walk(starts, 2, 1, dead_end="pad")
            with store.measure() as measured:
                actual = walker.walk(starts, 2, 1, dead_end="pad")
            assert torch.equal(actual.nodes, expected.nodes)
            assert actual.edge_ids is not None
            assert expected.edge_ids is not None
            assert torch.equal(actual.edge_ids, expected.edge_ids)
            if path[0] == path[1] or not all(store.num_edges(t) for t in path):
                continue
            nodes = expected.nodes.cpu()
            assert_lists(measured.result(), store, path[0], nodes[:, 0])
            if (nodes[:, 1] >= 0).any():
                assert_lists(measured.result(), store, path[1], nodes[:, 1][nodes[:, 1] >= 0])


def test_pinsage(device: torch.device) -> None:
    with build(homogeneous_source(), "mixed", device=device) as store:
        sampler = PinSageSampler(store, num_walks=4, walk_length=3, num_neighbors=5, num_layers=2)
        expected = sampler.sample(torch.arange(9), 1)
        with store.measure() as measured:
            actual = sampler.sample(torch.arange(9), 1)
        assert torch.equal(actual.nodes, expected.nodes)
        result = measured.result()
        assert result.batches == (1,)
        targets = sum(layer.num_targets for layer in expected.layers)
        assert 4 * targets < sum(result.item("structure", "_N-_E-_N").reads[0]) <= 12 * targets


@pytest.mark.parametrize("plan", PLANS)
def test_fixed_shapes(plan: str, device: torch.device) -> None:
    """As many reads as the sample without its padding makes."""
    for typed in (False, True):
        with named_case("typed", typed):
            source = heterogeneous_source(10) if typed else homogeneous_source()
            with build(source, plan, device=device) as store:
                node_type = store.node_types[-1]
                sampler = NeighborSampler(store, [4, 3])
                seeds = {
                    node_type: torch.arange(8, device=store.device) % store.num_nodes(node_type)
                }
                fixed = StaticShapeSampler(sampler, {node_type: 8})
                count = {node_type: torch.tensor([6], device=store.device)}
                expected = fixed.sample(seeds, 5, num_seeds=count)
                with store.measure() as measured:
                    actual = fixed.sample(seeds, 5, num_seeds=count)
                with store.measure() as plain:
                    sampler.sample({node_type: seeds[node_type][:6]}, 5)
                for name in ("nodes", "row", "col", "edge_ids"):
                    for key, value in getattr(expected, name).items():
                        assert torch.equal(getattr(actual, name)[key], value), (name, key)
                mine = {(i.kind, i.name): i.reads for i in measured.result().items}
                assert mine == {(i.kind, i.name): i.reads for i in plain.result().items}
                assert measured.result().batches == (1,)


def test_rows_read_in_place(device: torch.device) -> None:
    for reduce in ("sum", "mean", "max"):
        with named_case(reduce), build(homogeneous_source(), "mixed", device=device) as store:
            table = store.node_table("x")
            sample = NeighborSampler(store, [4]).sample(torch.arange(30), 2)
            block = sample.block(0)
            nodes = sample.nodes["_N"]
            csc = Csc.from_block(block, len(nodes))
            expected = g_spmm(csc, "copy_u", reduce, x=table.gather(nodes))
            with store.measure() as measured:
                actual = g_spmm(csc, "copy_u", reduce, x=TableRows(table, nodes))
            torch.testing.assert_close(actual, expected)
            rows = internal(store, "_N", nodes.cpu()[block.row.cpu().long()])
            item = measured.result().item("node table", "_N.x")
            assert item.reads == (tuple(expected_sources(store, rows, table.tiers, 0)),)
            assert item.seconds == (0.0,)
