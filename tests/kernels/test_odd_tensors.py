"""Tensors without memory of their own, lazy views, and shared memory, at tables and in sums."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from peergraph.aggregate import Csc, attention, edge_softmax, g_sddmm, g_spmm
from peergraph.aggregate.layers import activate
from peergraph.memory import Group, Table, TableRows, Tiers
from tests.named_case import named_case, named_cases

IDS = torch.tensor([2, 0, 3, 2])
EDGES = torch.tensor([[0, 1, 2, 0, 3], [1, 2, 0, 2, 3]])


class Wrapper(torch.Tensor):
    """A subclass that has a tensor instead of memory, as DTensor and those of torchao do."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        self.inner = inner
        return self  # type: ignore[no-any-return]

    def __init__(self, inner: Tensor) -> None: ...

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))


def table_of(rows: Tensor) -> Table:
    table = Table.create(rows.shape, rows.dtype, Tiers(host=len(rows)), Group.current("cpu"))
    table.load(rows)
    return table


@pytest.fixture
def table() -> Iterator[Table]:
    table = table_of(torch.arange(8.0).view(4, 2))
    yield table
    table.close()


def csc() -> Csc:
    return Csc.from_edge_index(EDGES, num_sources=4, num_destinations=4)


def scores(shape: tuple[int, ...] = (5, 2)) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5


OPERATIONS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "copy_u": ((4, 3), lambda x: g_spmm(csc(), "copy_u", "sum", x=x)),
    "copy_e": ((5, 3), lambda e: g_spmm(csc(), "copy_e", "mean", e=e)),
    "mul": ((5, 2), lambda e: g_spmm(csc(), "mul", "sum", x=scores((4, 2)), e=e)),
    "max": ((4, 3), lambda x: g_spmm(csc(), "copy_u", "max", x=x)),
    "dot": ((4, 3), lambda x: g_sddmm(csc(), "dot", x, scores((4, 3)))),
    "edge_softmax": ((5, 2), lambda e: edge_softmax(csc(), e)),
    "attention": ((4, 2, 3), lambda x: attention(csc(), x, scores((4, 2)))),
    "left": ((4, 2), lambda left: attention(csc(), scores((4, 2, 3)), left)),
    "activate": ((4, 3), lambda x: activate(x, scores((3,)))),
}


@named_cases("name", OPERATIONS)
def test_negative_views_in_operations(name: str) -> None:
    shape, operation = OPERATIONS[name]
    x = scores(shape)
    actual, expected = operation(torch._neg_view(x)), operation(-x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@named_cases("name", sorted(OPERATIONS.keys() - {"activate"}))
def test_wrappers_in_operations(name: str) -> None:
    shape, operation = OPERATIONS[name]
    for odd in (Wrapper(scores(shape)), scores(shape).flatten(1).to_sparse()):
        with named_case(type(odd)), pytest.raises((TypeError, ValueError)):
            operation(odd)


def test_gradients_that_are_negative_views() -> None:
    x = scores((4, 3)).requires_grad_()
    (actual,) = torch.autograd.grad(
        g_spmm(csc(), "copy_u", "sum", x=x), x, torch._neg_view(scores((4, 3)))
    )
    (expected,) = torch.autograd.grad(g_spmm(csc(), "copy_u", "sum", x=x), x, -scores((4, 3)))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_wrappers_at_tables(table: Table) -> None:
    calls: dict[str, Callable[[], object]] = {
        "ids": lambda: table.gather(Wrapper(IDS)),
        "ids of a view": lambda: TableRows(table, Wrapper(IDS)),
        "values": lambda: table.scatter(IDS[:1], Wrapper(torch.ones(1, 2))),
        "out": lambda: table.gather(IDS, out=Wrapper(torch.ones(4, 2))),
        "source": lambda: table.load(Wrapper(torch.ones(4, 2))),
        "sparse": lambda: table.load(torch.ones(4, 2).to_sparse()),
        "nested": lambda: table.scatter(IDS, torch.nested.nested_tensor([torch.ones(2)])),
        "transform": lambda: torch.vmap(lambda i: table.gather(i))(IDS.view(2, 2)),
    }
    for name, call in calls.items():
        with named_case(name), pytest.raises(TypeError, match="must be a dense tensor"):
            call()
    assert torch.equal(table.gather(IDS), torch.arange(8.0).view(4, 2)[IDS])


def test_conjugate_and_negative_views_at_tables() -> None:
    z = torch.complex(torch.arange(8.0), torch.arange(8.0) + 1).view(4, 2)
    table = table_of(z.conj())
    assert torch.equal(table.gather(IDS), z.conj().resolve_conj()[IDS])
    table.scatter(torch.arange(4), z)
    assert torch.equal(table.read(), z)
    table.scatter(torch.arange(4), z.conj())
    assert torch.equal(table.read(), z.conj().resolve_conj())
    for out in (torch.zeros(4, 2, dtype=z.dtype).conj(), torch.zeros(4, 2).to(z).conj()):
        with pytest.raises(ValueError, match="conjugate"):
            table.gather(IDS, out=out)
    table.close()
    imaginary = z[:, :1].clone().conj().imag
    table = table_of(imaginary)
    assert torch.equal(table.read(), imaginary.resolve_neg())
    with pytest.raises(ValueError, match="negative"):
        table.gather(IDS, out=torch._neg_view(torch.zeros(4, 1)))
    assert torch.equal(table.gather(torch._neg_view(-IDS)), imaginary.resolve_neg()[IDS])
    table.close()


def test_memory_of_the_table_as_an_argument(table: Table) -> None:
    whole, rows = table.as_tensor(), torch.arange(8.0).view(4, 2)
    order = torch.tensor([3, 2, 1, 0])
    for call in (
        lambda: table.gather(order, out=whole),
        lambda: table.gather(order[:1], out=whole[3:]),
        lambda: table.read(out=whole),
        lambda: table.scatter(order, whole),
        lambda: table.scatter(order[:2], whole[1:3]),
    ):
        with pytest.raises(ValueError, match="memory with the table"):
            call()
    with pytest.raises(ValueError, match="contiguous"):
        table.gather(order, out=torch.zeros(1, 2).expand(4, 2))
    assert torch.equal(table.read(), rows)
    numbers = table_of(torch.arange(4).view(4, 1))
    ids = torch.tensor([3, 1, 0, 2])
    with pytest.raises(ValueError, match="memory with ids"):
        numbers.gather(ids, out=ids.view(4, 1))
    with pytest.raises(ValueError, match="memory with the table"):
        numbers.scatter(numbers.as_tensor().view(4), torch.zeros(4, 1, dtype=torch.int64))
    assert torch.equal(numbers.read(), torch.arange(4).view(4, 1))
    numbers.close()


def test_autograd_sees_that_out_changes(table: Table) -> None:
    calls: dict[str, Callable[[Tensor], object]] = {
        "gather": lambda out: table.gather(IDS, out=out),
        "read": lambda out: table.read(out=out),
    }
    for name, call in calls.items():
        with named_case(name):
            out, weight = torch.ones(4, 2), torch.ones(2, requires_grad=True)
            loss = (out * weight).sum()
            call(out)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            parameter = torch.nn.Parameter(torch.ones(4, 2))
            with pytest.raises(ValueError, match="out must not need a gradient"):
                call(parameter)
            with torch.no_grad():
                call(parameter)
            assert torch.equal(parameter.detach(), out)
            with torch.inference_mode():
                constant = torch.ones(4, 2)
            call(constant)
            assert torch.equal(constant, out)


def test_a_structure_keeps_its_edges() -> None:
    """Later writes to the tensors that it was made of do not reach it."""
    indptr, indices, edge_ids = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]), torch.arange(3)
    graphs = {"tensors": Csc(indptr, indices, 2, edge_ids=edge_ids)}
    edge_index = torch.tensor([[0, 1, 0], [0, 0, 1]])
    graphs["edge index"] = Csc.from_edge_index(edge_index, num_sources=2, num_destinations=2)
    x, e = scores((2, 3)), scores((3, 3))
    expected = {n: g_spmm(graph, "mul", "sum", x=x, e=e) for n, graph in graphs.items()}
    for tensor in (indptr, indices, edge_ids, edge_index):
        tensor.data.fill_(1)
    for name, graph in graphs.items():
        assert torch.equal(g_spmm(graph, "mul", "sum", x=x, e=e), expected[name]), name


@named_cases("name", ["indptr", "indices", "edge_ids"])
@named_cases("value", [10**12, -1])
def test_a_structure_changed_in_place(name: str, value: int) -> None:
    graph = Csc(
        torch.tensor([0, 2, 3]), torch.tensor([0, 1, 0]), 2, edge_ids=torch.tensor([2, 1, 0])
    )
    changed = getattr(graph, name)
    changed[1] = value
    x, e = scores((2, 3)), scores((3, 3))
    with pytest.raises(IndexError, match=f"{name}.*changed after"):
        g_spmm(graph, "mul", "sum", x=x, e=e)


def _attack(values: Tensor, good: int, call: Callable[[], object]) -> None:
    """Calls while another thread writes ids out of range and in range."""
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            values.fill_(10**12)
            values.fill_(good)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            with suppress(IndexError, ValueError):
                call()
    finally:
        stop.set()
        thread.join()


def test_ids_that_another_thread_changes() -> None:
    table, ids = table_of(scores((100, 16))), torch.zeros(50_000, dtype=torch.int64)
    values, edge_index = scores((50_000, 16)), torch.zeros(2, 50_000, dtype=torch.int64)
    _attack(ids, 5, lambda: table.gather(ids))
    _attack(ids, 5, lambda: table.scatter(ids, values))
    _attack(ids, 5, lambda: TableRows(table, ids).addresses())
    x = scores((100, 4))
    _attack(edge_index, 5, lambda: g_spmm(
        Csc.from_edge_index(edge_index, num_sources=100, num_destinations=100), "copy_u", "sum", x
    ))  # fmt: skip
    graph = Csc.from_edge_index(edge_index.fill_(5), num_sources=100, num_destinations=100)
    _attack(graph.indices, 5, lambda: g_spmm(graph, "copy_u", "max", x))
    table.close()
