"""Shared data with narrow storage: the batches and results of data with the decoded values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GCN, GraphSAGE

import peergraph_pyg
from peergraph.fullgraph import named_model
from peergraph.memory import NarrowTable
from peergraph_pyg import LazyRows, accelerate
from tests.memory.narrow_rows import STORAGES, expected_rows
from tests.named_case import named_case

from .graphs import random_data, random_hetero

_SEEDS = torch.tensor([3, 1, 59, 3, 7, 22, 40])


def _pair(storage: str, device: torch.device, **options: Any) -> tuple[Any, Any]:
    """Shared data with narrow storage, and with the decoded values as they are."""
    plain = random_data()
    for name in ("x", "edge_attr", "edge_weight"):
        plain[name] = expected_rows(plain[name], storage)
    named = dict.fromkeys(("x", "edge_attr", "edge_weight"), storage)
    narrow = peergraph_pyg.share(random_data(), device=device, storage=named, **options)
    return narrow, peergraph_pyg.share(plain, device=device, **options)


def _check(pair: tuple[Any, Any], loader: Callable[[Any], Any]) -> None:
    results = []
    for graph in pair:
        torch.manual_seed(0)
        results.append(list(loader(graph)))
    assert len(results[0]) > 0
    for mine, other in zip(*results, strict=True):
        for left, right in zip(mine.stores, other.stores, strict=True):
            assert set(left.keys()) == set(right.keys())
            for name, value in left.items():
                if isinstance(value, Tensor):
                    assert value.dtype == right[name].dtype
                    assert value.device == right[name].device
                    assert torch.equal(value, right[name])


def _close(*graphs: Any) -> None:
    for graph in graphs:
        peergraph_pyg.store_of(graph).close()


def test_batches(device: torch.device) -> None:
    plans = ["replicated", "sharded", "host", "auto"]
    for i, storage in enumerate(STORAGES):
        with named_case(storage):
            pair = _pair(storage, device, plan=plans[i % len(plans)])
            assert isinstance(peergraph_pyg.store_of(pair[0]).node_table("x"), NarrowTable)
            assert (pair[0].x.dtype, pair[0].edge_weight.dtype) == (torch.float32, torch.float64)

            def nodes(graph: Any) -> Any:
                return NeighborLoader(graph, [3, 2], input_nodes=_SEEDS, batch_size=4)

            def links(graph: Any) -> Any:
                edges = torch.arange(24).view(2, 12)
                return LinkNeighborLoader(graph, [3], edge_label_index=edges, batch_size=4)

            def stores(graph: Any) -> Any:
                of_graph = peergraph_pyg.stores(peergraph_pyg.store_of(graph))
                return NeighborLoader(of_graph, [3], input_nodes=_SEEDS, batch_size=4)

            def lazy(graph: Any) -> Any:
                for batch in nodes(peergraph_pyg.lazy(graph)):
                    assert isinstance(batch.x, LazyRows)
                    batch.x = batch.x + 0
                    yield batch

            for loader in (nodes, links, stores, lazy):
                with named_case(loader.__name__):
                    _check(pair, loader)
            _close(*pair)


def test_values_of_the_shared_data(device: torch.device) -> None:
    narrow, plain = _pair("int8", device)
    ids = torch.tensor([5, 0, 59])
    for name in ("x", "edge_attr"):
        assert torch.equal(narrow[name][ids], plain[name][ids])
        assert torch.equal(narrow[name][3:9], plain[name][3:9])
        assert torch.equal(narrow[name].sum(), plain[name].sum())
        assert torch.equal(narrow[name].cpu().clone(), plain[name].cpu().clone())
    rows = torch.randn(3, 5)
    narrow.x[ids] = rows.to(narrow.x.device)
    assert torch.equal(narrow.x[ids].cpu(), expected_rows(rows, "int8"))
    with pytest.raises(ValueError, match=r"_N.x: row 0 has inf"):
        narrow.x[ids] = torch.tensor([1.0, float("inf"), 0.0]).view(3, 1).to(narrow.x.device)
    _close(narrow, plain)


def test_types(device: torch.device) -> None:
    storage = {"paper": {"x": "float16"}, "author": {"x": "int8"}, "edge_attr": "bfloat16"}
    narrow = peergraph_pyg.share(random_hetero(), device=device, storage=storage)
    plain = random_hetero()
    plain["paper"].x = expected_rows(plain["paper"].x, "float16")
    plain["author"].x = expected_rows(plain["author"].x, "int8")
    edges = plain["author", "writes", "paper"]
    edges.edge_attr = expected_rows(edges.edge_attr, "bfloat16")
    shared = peergraph_pyg.share(plain, device=device)
    seeds = ("paper", torch.arange(12))
    _check(
        (narrow, shared),
        lambda graph: NeighborLoader(graph, [3, 2], input_nodes=seeds, batch_size=4),
    )
    assert set(peergraph_pyg.store_of(narrow).storage_reports) == {
        "paper.x",
        "author.x",
        "author-writes-paper.edge_attr",
    }
    _close(narrow, shared)


def test_layers_that_read_the_store(device: torch.device) -> None:
    """Accelerated layers of lazy batches: rows are gathered once, and results are the same."""
    pair = _pair("bfloat16", device)
    torch.manual_seed(1)
    model = accelerate(GraphSAGE(5, 8, 2, 3).to(device))
    results = []
    for graph in pair:
        torch.manual_seed(0)
        loader = NeighborLoader(peergraph_pyg.lazy(graph), [4, 4], input_nodes=_SEEDS, batch_size=7)
        batch = next(iter(loader))
        results.append(model(batch.x, batch.edge_index))
    torch.testing.assert_close(*results)
    _close(*pair)


def test_full_graphs(device: torch.device) -> None:
    pair = _pair("int8", device)
    for options in ({}, {"offload": True, "num_chunks": 2, "model": named_model([5, 8, 3])}):
        losses = []
        for graph in pair:
            parts = peergraph_pyg.full_graph(graph, **options)
            torch.manual_seed(1)
            model = accelerate(GCN(5, 8, 2, 3).to(device))
            losses.append(model(parts.x, parts.edge_index).square().mean().item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    _close(*pair)


def test_data_of_half_precision_is_stored_as_it_is() -> None:
    data = random_data()
    for storage in (None, {"half": "float16"}):
        shared = peergraph_pyg.share(data, device="cpu", storage=storage)
        table = peergraph_pyg.store_of(shared).node_table("half")
        assert not isinstance(table, NarrowTable)
        assert table.row_bytes == 6
        assert torch.equal(shared.half[:], data.half)
        _close(shared)


def test_refusals() -> None:
    data = random_data()
    for storage, message in (
        ({"y": "int8"}, "table 'y' of '_N': storage 'int8' is for tables of"),
        ({"train_mask": "float16"}, "table 'train_mask'"),
        ({"features": "float16"}, "storage names no table: 'features'"),
    ):
        with pytest.raises(ValueError, match=message):
            peergraph_pyg.share(data, device="cpu", storage=storage)
