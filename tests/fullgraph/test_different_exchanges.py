"""Ranks that do different things with a full graph: an error on all of them, within seconds."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

import peergraph_pyg
from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.fullgraph import FullGraph, PartitionedEdgeIndex, PartitionedTensor
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.full_graph_options import FullGraphOptions
from peergraph.fullgraph.layout.duplication import MAX_CHUNKS
from peergraph.memory import Group
from peergraph.testing import run_ranks

NODES, TIMEOUT_S = 60, 60.0


def _graph(**options: object) -> tuple[PartitionedTensor, PartitionedEdgeIndex, Tensor]:
    group = Group.current(timeout=TIMEOUT_S)
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (2, 400), generator=draw)
    settings: FullGraphOptions = options  # type: ignore[assignment]
    graph = FullGraph.build(group, NODES, edges, **settings)
    [structure] = graph.structures.values()
    x = graph.node_rows(torch.randn(NODES, 8, generator=draw))
    y = graph.node_rows(torch.arange(NODES) % 3)
    return x, PartitionedEdgeIndex(structure), y


def _trains(what: str, where: str) -> tuple[str, str, float] | None:
    """What this rank raises; rank 1 does something else in the second step."""
    x, edges, y = _graph(**({"offload": True, "num_chunks": 2} if where == "offloaded" else {}))
    torch.manual_seed(0)
    convs = [peergraph_pyg.accelerate(SAGEConv(8, 8)), peergraph_pyg.accelerate(SAGEConv(8, 3))]
    others = dist.get_rank() == 1
    start = time.monotonic()
    try:
        for step in range(3):
            out = convs[1](convs[0](x, edges).relu(), edges)
            loss = F.cross_entropy(out, y)
            if others and step == 1:
                if what == "full_tensor":
                    out.full_tensor()
                if what == "item":
                    out.detach().mean().item()
                if what == "mask":
                    x[y == 1]
                if what == "leave":
                    return None
            if what != "skip backward" or not others or step != 1:
                loss.backward()
    except PeerLostError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("where", ["resident", "offloaded"])
@pytest.mark.parametrize("what", ["skip backward", "full_tensor", "item", "mask"])
def test_another_exchange_is_named_on_all_ranks(what: str, where: str) -> None:
    for results in run_ranks(_trains, 2, what, where, timeout_s=TIMEOUT_S * 2):
        name, text, seconds = results
        assert name == CollectiveMismatchError.__name__, results
        assert text.startswith("the ranks are in different collectives: "), text
        assert "rank 1 called " in text, text
        assert seconds < TIMEOUT_S / 2


def test_a_rank_that_leaves_early_is_named() -> None:
    results = run_ranks(_trains, 3, "leave", "resident", timeout_s=TIMEOUT_S * 2)
    assert results[1] is None
    for name, text, seconds in (results[0], results[2]):
        assert name == PeerLostError.__name__
        assert text.startswith("rank 1 left the group (pid "), text
        assert seconds < TIMEOUT_S / 2


def _is_late() -> str:
    group = Group.current(timeout=2 if dist.get_rank() == 0 else TIMEOUT_S)
    if group.rank == 1:
        store = dist.distributed_c10d._get_default_store()
        store.wait(["rank 0 has given up"])
    else:
        with pytest.raises(PeerLostError) as caught:
            Transport.of(group).all_reduce(torch.ones(3))
        dist.distributed_c10d._get_default_store().set("rank 0 has given up", "")
        return str(caught.value)
    return ""


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    text = run_ranks(_is_late, 2)[0]
    assert text.startswith("rank 1 did not join within 2 s: ")


@pytest.mark.parametrize("value", [0, -1, MAX_CHUNKS + 1, 10**12])
def test_numbers_are_bounded_before_they_become_loops(value: int) -> None:
    with pytest.raises(ValueError, match=f"num_chunks must be at .*, got {value}"):
        _graph(offload=True, num_chunks=value)


@pytest.mark.parametrize(
    ("name", "value"), [("num_chunks", 1.5), ("seed", 0.5), ("host_memory", True)]
)
def test_numbers_are_integers(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an int, got {value!r}"):
        _graph(**{name: value})


def _builds(relations: int) -> tuple[int, int]:
    group = Group.current()
    calls = []
    exchange = group._exchange
    group._exchange = lambda *args: calls.append(1) or exchange(*args)  # type: ignore[method-assign, func-returns-value]
    draw = torch.Generator().manual_seed(0)
    edges = {
        ("a", f"relation {n}", "a"): torch.randint(NODES, (2, 30), generator=draw)
        for n in range(relations)
    }
    graph = FullGraph.build(group, {"a": NODES}, edges)
    x = torch.randn(NODES, 2, generator=draw)
    for edge_type, (source, destination) in edges.items():
        sums = graph.structures[edge_type].spmm("copy_u", "sum", graph.node_rows(x, "a"))
        expected = torch.zeros(NODES, 2).index_add_(0, destination, x[source])
        torch.testing.assert_close(sums.full_tensor(), expected)
        assert torch.equal(
            graph.edge_rows(torch.arange(30), edge_type).full_tensor(), torch.arange(30)
        )
    return len(calls), len(graph.structures)


def test_many_relations_take_as_many_exchanges_as_one() -> None:
    few, many = run_ranks(_builds, 2, 2)[0], run_ranks(_builds, 2, 40)[0]
    # Reading the rows of each structure takes some, too.
    assert many[0] - few[0] <= 3 * (many[1] - few[1])
