"""Rows with narrow storage that are split over machines: decoded batches, and narrow messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.memory import DistributedTable, NarrowTable, NetworkTraffic
from peergraph.store import Store
from tests.adapters.pyg.graphs import random_data
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.memory.narrow_rows import expected_rows
from tests.named_case import named_case

_STORAGE = {"x": "int8:8", "edge_attr": "float16"}
# Of int8:8 with 32 columns: 32 values and 4 scales. Of float16: 4 x 3 values.
_ROW_BYTES = {"x": 48, "edge_attr": 24}
_FULL_ROW_BYTES = {"x": 128, "edge_attr": 48}


def _data() -> Data:
    data = random_data()
    data.x = torch.randn(60, 32, generator=torch.Generator().manual_seed(2))
    data.edge_attr = data.edge_attr.repeat(1, 2, 1)
    return data


def _batches(graph: Any, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(dist.get_rank())
    seeds = torch.arange(dist.get_rank(), 60, dist.get_world_size())
    loader = NeighborLoader(graph, [4, 3], input_nodes=seeds, batch_size=5)
    return [(batch.n_id.cpu(), batch.x.cpu(), batch.edge_attr.cpu()) for batch in loader]


def _traffic(store: Store) -> NetworkTraffic:
    """The traffic of all iterations so far: a new one begins when the others have ended."""
    assert store.exchange is not None
    with store.exchange.open("no batches"):
        return store.network_traffic()


def _split_rows(device: str) -> None:
    place = device_of_rank(device)
    plain = _data()
    plain.x = expected_rows(plain.x, "int8:8")
    plain.edge_attr = expected_rows(plain.edge_attr, "float16")
    options: Any = {"device": place, "machines": "shard", "hot_ratio": 0.25}
    narrow = peergraph_pyg.share(_data(), storage=_STORAGE, **options)
    full = peergraph_pyg.share(plain, **options)
    results, traffic = [], []
    for graph in (narrow, full):
        store = peergraph_pyg.store_of(graph)
        table = store.node_table("x")
        assert isinstance(table, DistributedTable)
        assert table.dtype == torch.float32
        before = _traffic(store)
        results.append(_batches(graph, place))
        traffic.append(_traffic(store) - before)
    for mine, other in zip(*results, strict=True):
        for left, right in zip(mine, other, strict=True):
            assert left.dtype == right.dtype
            assert torch.equal(left, right)
    store = peergraph_pyg.store_of(narrow)
    tables = {"x": store.node_table("x"), "edge_attr": store.edge_table("edge_attr")}
    for name, table in tables.items():
        assert isinstance(table, DistributedTable)
        assert isinstance(table.local, NarrowTable)
        assert table.row_bytes == _ROW_BYTES[name]
        if name == "x":
            every = torch.arange(60)
            assert torch.equal(table.collective_read(every).cpu(), plain.x)
    # The messages differ by the bytes of the rows: so many rows of x and of edge_attr.
    rows = traffic[0].rows_received
    assert rows == traffic[1].rows_received
    less = {name: _FULL_ROW_BYTES[name] - _ROW_BYTES[name] for name in tables}
    saved = traffic[1].bytes_received - traffic[0].bytes_received
    of_nodes, rest = divmod(saved - rows * less["edge_attr"], less["x"] - less["edge_attr"])
    assert rest == 0
    assert 0 < of_nodes < rows
    for graph in (narrow, full):
        peergraph_pyg.store_of(graph).close()


def _other_sources(folder: Path) -> None:
    """Rows that one machine sends, and rows of a saved store."""
    expected = expected_rows(_data().x, "int8:8")
    every = torch.arange(60)
    data = _data() if dist.get_rank() == 0 else None
    sent = peergraph_pyg.share(data, device="cpu", machines="shard", storage=_STORAGE)
    table = peergraph_pyg.store_of(sent).node_table("x")
    assert isinstance(table, DistributedTable)
    assert torch.equal(table.collective_read(every), expected)
    peergraph_pyg.store_of(sent).close()
    whole = peergraph_pyg.store_of(peergraph_pyg.share(_data(), device="cpu", storage=_STORAGE))
    if dist.get_rank() == 0:
        whole.save(folder / "store")
    whole.close()
    dist.barrier()
    for storage, values in (
        (None, expected),
        ({"x": "float32"}, expected),
        ({"x": "float16"}, expected_rows(expected, "float16")),
    ):
        options: Any = {"machines": "shard", "storage": storage}
        with named_case(storage), Store.load(folder / "store", device="cpu", **options) as store:
            table = store.node_table("x")
            assert isinstance(table, DistributedTable)
            assert torch.equal(table.collective_read(every), values)


def _refusals() -> None:
    data = _data()
    data.x[53, 7] = float("inf")
    # Which machine has the row depends on its place.
    with pytest.raises(Exception, match=r"_N.x: row 53 has inf in column 7"):
        peergraph_pyg.share(data, device="cpu", machines="shard", storage={"x": "int8"})
    storage = {"x": "int8" if dist.get_rank() else "float16"}
    with pytest.raises(ValueError, match="storage"):
        peergraph_pyg.share(_data(), device="cpu", machines="shard", storage=storage)


def _cases(folder: Path) -> None:
    _split_rows("cpu")
    _other_sources(folder)
    _refusals()


def test_two_machines(tmp_path: Path) -> None:
    run_on_hosts(_cases, "ab", tmp_path, timeout_s=300)


@pytest.mark.gpus(2)
def test_two_machines_on_gpus() -> None:
    run_on_hosts(_split_rows, "ab", "cuda", device="cuda", timeout_s=300)
