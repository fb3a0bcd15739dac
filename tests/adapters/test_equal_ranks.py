"""Ranks that give other data to a full graph: an error on all of them, which names what and who."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import peergraph_pyg
from peergraph.memory import Group
from peergraph.memory.device.digest import digest_tensor
from peergraph.memory.group.content import describe_content
from peergraph.testing import run_ranks
from tests.machines.hosts import run_on_hosts
from tests.named_case import named_case

NODES, EDGES = 30, 90


def _data() -> Data:
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(NODES, (2, EDGES), generator=draw)
    data = Data(torch.randn(NODES, 3, generator=draw), edge_index, num_nodes=NODES)
    data.y = torch.arange(NODES) % 3
    data.train_mask = torch.rand(NODES, generator=draw) < 0.5
    data.edge_attr = torch.randn(EDGES, 2, generator=draw)
    data.scores = np.linspace(0, 1, NODES)
    data.split = torch.arange(5)
    data.names, data.limits = ["a", "b"], {"low": 1.0, "high": [2, 3]}
    return data


def _other(value: Any) -> Any:
    """A value of the same kind, which differs little."""
    if isinstance(value, Tensor):
        value = value.clone()
        value.view(-1)[-1] = ~value.view(-1)[-1] if value.dtype == torch.bool else 17
        return value
    if isinstance(value, np.ndarray):
        return np.concatenate([value[:-1], [-1.0]])
    return {**value, "high": [2, 4]} if isinstance(value, dict) else [*value[:-1], "c"]


def _raises(name: str, graph: Any, **options: Any) -> None:
    with named_case(name), pytest.raises(ValueError, match="the ranks disagree about") as caught:
        peergraph_pyg.full_graph(graph, **options)
    text = str(caught.value)
    assert name in text.split(":")[0], text
    assert "on rank 1" in text, text
    assert "on ranks 0, 2" in text, text


def _checks_pyg() -> None:
    rank = Group.current().rank
    for name in _data().to_dict():
        if name != "num_nodes":
            data = _data()
            data[name] = _other(data[name]) if rank == 1 else data[name]
            _raises("edges" if name == "edge_index" else f"data.{name}", data)
    data = _data()
    data.x[4, 0] = -0.0 if rank == 1 else 0.0
    _raises("data.x", data, offload=True, num_chunks=2)
    data = _data()
    data.x[4, 0] = float("nan")
    assert peergraph_pyg.full_graph(data).num_nodes == NODES
    if rank == 1:
        data.more = torch.ones(NODES)
    _raises("data.more", data)
    options: dict[str, Any] = {"offload": True, "num_chunks": 2, "seed": 3, "order": "random"}
    others = {"offload": False, "num_chunks": 3, "seed": 4, "order": "original"}
    for name, other in others.items():
        _raises(name, _data(), **(options | ({name: other} if rank == 1 else {})))
    typed = HeteroData()
    typed["a"].x = torch.zeros(4, 2) + (rank == 1)
    typed["b"].x = torch.zeros(5, 1)
    typed["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 3]])
    _raises("data['a'].x", typed)
    with pytest.raises(TypeError, match="data must be Data"):  # of one rank, raised by all
        peergraph_pyg.full_graph(_data() if rank else "graph")
    # Ranks go on together, and those that have no data get it from another.
    graph = peergraph_pyg.full_graph(_data() if rank == 0 else None)
    assert torch.equal(graph.x.full_tensor(), _data().x)


def _checks_dgl() -> None:
    import peergraph_dgl  # first: it replaces what this installation of DGL lacks

    # isort: split

    import dgl

    rank = Group.current().rank
    source, destination = _data().edge_index
    for owner, name in (("nodes['_N']", "x"), ("edges[('_N', '_E', '_N')]", "w")):
        graph = dgl.graph((source, destination), num_nodes=NODES)
        graph.ndata["x"], graph.edata["w"] = torch.ones(NODES), torch.ones(EDGES)
        columns = graph.ndata if name == "x" else graph.edata
        columns[name][3] = rank
        with pytest.raises(ValueError, match="the ranks disagree about") as caught:
            peergraph_dgl.full_graph(graph)
        assert f"g.{owner}.data['{name}']" in str(caught.value)

    _checks_partitioned_dgl(peergraph_dgl, dgl)


def _checks_partitioned_dgl(peergraph_dgl: Any, dgl: Any) -> None:
    graph = dgl.graph(tuple(_data().edge_index), num_nodes=NODES)
    graph.ndata["x"] = torch.ones(NODES)
    full_dgl = peergraph_dgl.full_graph(graph)
    graph.ndata["x"] = full_dgl.ndata["x"]
    for share in (peergraph_dgl.share, peergraph_dgl.full_graph):
        with pytest.raises(TypeError, match="is partitioned over the ranks"):
            share(graph)
    with pytest.raises(TypeError, match="PartitionedGraph|partitioned"):
        peergraph_dgl.full_graph(full_dgl)


def _checks_partitioned() -> None:
    full = peergraph_pyg.full_graph(_data())
    plain = _data()
    plain.more = [full.x]
    for share, data in (
        (peergraph_pyg.share, full),
        (peergraph_pyg.share, plain),
        (peergraph_pyg.full_graph, full),
        (peergraph_pyg.full_graph, plain),
    ):
        with pytest.raises(TypeError, match="is partitioned over the ranks"):
            share(data)


def _checks() -> None:
    _checks_pyg()
    _checks_partitioned()


def test_what_differs_is_named_on_all_ranks() -> None:
    run_ranks(_checks, 3)


def test_what_differs_is_named_on_all_ranks_by_dgl() -> None:
    pytest.importorskip("peergraph_dgl", exc_type=ImportError)
    run_ranks(_checks_dgl, 3)


def _checks_machines() -> None:
    machine = Group.current("cpu").machines.index
    names = ("x", "y", "train_mask", "edge_attr", "scores", "split", "names", "edge_index")
    for name in names:
        for machines in ("shard", "replicate"):
            data = _data()
            data[name] = _other(data[name]) if machine else data[name]
            match = "machines (bring different graphs|disagree).*" + name.removesuffix("_index")
            with named_case(name, machines), pytest.raises(ValueError, match=match):
                peergraph_pyg.share(data, device="cpu", machines=machines)
    shared = peergraph_pyg.share(_data(), device="cpu", machines="shard")
    assert torch.equal(shared.x[:], _data().x)


def test_what_differs_between_machines_is_named() -> None:
    run_on_hosts(_checks_machines, "ab")


def test_digests_are_of_bytes() -> None:
    values = torch.randn(70, 5, 3)
    whole = digest_tensor(values)
    assert whole == digest_tensor(values.transpose(0, 1).contiguous().transpose(0, 1))
    parts = digest_tensor(values[:33]) + digest_tensor(values[33:], first_row=33)
    assert whole == parts % 2**64
    bits = values < 0
    parts = digest_tensor(bits[:9]) + digest_tensor(bits[9:], first_row=9)
    assert digest_tensor(bits) == parts % 2**64
    flat = torch.arange(9, dtype=torch.float32)
    assert digest_tensor(flat[1:]) == digest_tensor(flat[1:].clone())
    assert digest_tensor(flat[1:].view(4, 2)) == digest_tensor(flat[1:].clone().view(4, 2))
    zeros = torch.zeros(3)
    assert digest_tensor(zeros) != digest_tensor(-zeros)
    assert digest_tensor(zeros.half()) != digest_tensor(torch.ones(3).half())
    assert digest_tensor(values.flip(0)) != whole


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        ("x" * 99, "x" * 98 + "y"),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (torch.eye(3).to_sparse(), torch.ones(3, 3).tril().triu().to_sparse() * 2),
        (float("nan"), 0.0),
    ],
)
def test_contents_that_differ_have_other_texts(first: Any, second: Any) -> None:
    assert describe_content(first) != describe_content(second)
    assert describe_content(first) == describe_content(first)
