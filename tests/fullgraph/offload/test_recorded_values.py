"""Recorded functions use the values that their arguments had when they were called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peergraph.fullgraph import PartitionedTensor, distribute
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.memory import Group
from peergraph.testing import run_ranks

from .offloaded_runs import PLENTY, Data, make_graph, offload
from .test_offloaded_tensor import NODES, full, inputs, make


def by_version(w: Tensor) -> None:
    with torch.no_grad():
        w.mul_(2)


def by_data(w: Tensor) -> None:
    w.data.mul_(2)


def by_numpy(w: Tensor) -> None:
    w.detach().numpy()[:] *= 2


def by_numpy_of_rows(rows: Tensor) -> None:
    assert isinstance(rows, PartitionedTensor)
    rows.to_local().numpy()[:] *= 2


def by_foreach(w: Tensor) -> None:
    torch._foreach_mul_([w.detach()], 2)


def by_fused_step(w: Tensor) -> None:
    w.grad = torch.ones_like(w)
    torch.optim.Adam([w], lr=0.5, fused=True).step()
    w.grad = None


def by_vector(w: Tensor) -> None:
    nn.utils.vector_to_parameters(w.detach().flatten() * 2, [w])


CHANGES: list[Callable[[Tensor], None]] = [
    *(by_version, by_data, by_numpy, by_foreach, by_fused_step, by_vector),
]


@pytest.mark.parametrize("change", CHANGES)
def test_values_and_gradients_are_those_of_the_call(change: Callable[[Tensor], None]) -> None:
    x, _, _, w = make(Group.current("cpu"), 3)
    rows, before = inputs()[0], w.detach().clone()
    w.requires_grad_()
    first, total = F.linear(x, w), (x @ w).exp().sum()
    change(w)
    after = w.detach().clone()
    assert not torch.equal(after, before)
    second = F.linear(x, w)
    torch.testing.assert_close(first.full_tensor(), rows @ before.t())
    torch.testing.assert_close(second.full_tensor(), rows @ after.t())
    (first * second).sum().backward()
    plain = [before.clone().requires_grad_(), after.clone().requires_grad_()]
    (F.linear(rows, plain[0]) * F.linear(rows, plain[1])).sum().backward()
    torch.testing.assert_close(w.grad, plain[0].grad + plain[1].grad)  # type: ignore[operator]
    w.grad = plain[0].grad = None
    total.backward()
    (rows @ plain[0]).exp().sum().backward()
    torch.testing.assert_close(w.grad, plain[0].grad)


def one_column(x: Tensor, w: Tensor) -> Tensor:
    return (x * w[0]).view(-1, 2, 3).sum(2)


def by_half(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x.float(), w.detach().float()).double()


SAVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda x, w: x * w[1],
    "leaf": lambda x, w: x.unsqueeze(-1) * w,
    "expanded": lambda x, w: x.unsqueeze(-1) * w[:, :1].expand(6, 6),
    "view": one_column,
    "linear": F.linear,
    "chain": lambda x, w: F.linear(F.linear(x, w).tanh(), w),
    "autocast": by_half,
    "norm": lambda x, w: F.layer_norm(x, [6], w[0], w[1]),
    "nothing": lambda x, w: (x + w[0]).exp(),
    "selected": lambda x, w: F.linear(x, w)[[3, 0, 3]],
    "mean": lambda x, w: (x @ w).mean(0).square(),
    "maximum": lambda x, w: (x * w[2]).amax(0),
    "statistics": lambda x, w: F.instance_norm(x.t().unsqueeze(0), None, None, w[0]).mean(2).exp(),
    "loss": lambda x, w: F.binary_cross_entropy_with_logits(x, x.detach().sigmoid(), w.detach()[0]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", SAVED)
def test_gradients_read_what_autograd_has_saved(
    name: str, change: Callable[[Tensor], None]
) -> None:
    def run(x: Tensor, w: Tensor) -> list[Tensor | None]:
        x, w = x.detach().requires_grad_(), w.clone().requires_grad_()
        out = SAVED[name](x, w)
        change(w)
        out.sum().backward()
        return [full(x.grad), full(w.grad)]

    x, _, _, w = make(Group.current("cpu"), 3)
    expected, refused = outcome(lambda: run(inputs()[0], w))
    actual, refused_here = outcome(lambda: run(x, w))
    assert "modified by an inplace operation" in refused or not refused
    if refused or (change is by_vector and refused_here):
        # What torch uses after `w.data = ...` depends on whether autograd saved w or a view of it.
        assert "changed in place" in refused_here
    else:
        torch.testing.assert_close(actual, expected, msg=refused_here or None)


def outcome(run: Callable[[], list[Tensor | None]]) -> tuple[list[Tensor | None], str]:
    """The results, and what a RuntimeError says."""
    try:
        return run(), ""
    except RuntimeError as error:
        return [], str(error)


def test_inference_tensors_may_change_after_the_call() -> None:
    x, _, _, w = make(Group.current("cpu"), 3)
    with torch.inference_mode():
        other = w.clone()
        out = F.linear(x, other)
        other.zero_()
    torch.testing.assert_close(out.full_tensor(), inputs()[0] @ w.t())


@pytest.mark.parametrize("change", [by_version, by_data, by_numpy_of_rows])
def test_rows_on_the_device_must_not_change(change: Callable[[Tensor], None]) -> None:
    x, _, _, _ = make(Group.current("cpu"), 3)
    rows = distribute(torch.ones(NODES, 1, dtype=torch.float64), x.row_layout)
    early, late = x * rows, x * rows
    torch.testing.assert_close(early.full_tensor(), inputs()[0])
    change(rows)
    with pytest.raises(RuntimeError, match="changed in place"):
        late.full_tensor()
    torch.testing.assert_close((x * rows).full_tensor(), inputs()[0] * 2)


def test_the_gradient_does_not_use_rows_that_changed() -> None:
    x, _, _, w = make(Group.current("cpu"), 3)
    rows = distribute(torch.ones(NODES, 1, dtype=torch.float64), x.row_layout)
    total = (F.linear(x, w.requires_grad_()) * rows).square().sum()
    by_data(rows)
    with pytest.raises(RuntimeError, match="changed in place"):
        total.backward()


def by_item(x: Tensor) -> None:
    x.data[3:7] = 2.0


def by_no_grad_item(x: Tensor) -> None:
    with torch.no_grad():
        x[torch.tensor([0, 5])] = 0.25


def by_zero(x: Tensor) -> None:
    x.data.zero_()


def by_copy(x: Tensor) -> None:
    x.data.copy_(x.detach() * 3)


def by_index_put(x: Tensor) -> None:
    x.data.index_put_((torch.tensor([1, 4]),), torch.tensor(0.5, dtype=x.dtype))


ROW_CHANGES = [by_version, by_data, by_item, by_no_grad_item, by_zero, by_copy, by_index_put]


@pytest.mark.parametrize("change", ROW_CHANGES)
def test_gradients_of_functions_do_not_use_rows_that_changed(
    change: Callable[[Tensor], None],
) -> None:
    def run(x: Tensor) -> Tensor:
        x.requires_grad_()
        half, early = x * 0.5, (x * 3).sum()
        change(x)
        total = half.exp().sum() + early + (half * x).sum()
        return torch.autograd.grad(total, x)[0]

    x = make(Group.current("cpu"), 3)[0]
    torch.testing.assert_close(run(x).full_tensor(), run(inputs()[0]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", ROW_CHANGES)
@pytest.mark.parametrize("function", [Tensor.square, Tensor.exp])
def test_a_function_that_saves_its_rows_refuses_other_rows(
    function: Callable[[Tensor], Tensor], change: Callable[[Tensor], None]
) -> None:
    x = make(Group.current("cpu"), 3)[0].requires_grad_()
    saved = function(x)
    change(x if function is Tensor.square else saved)
    for total in (saved.sum(), (saved * 2)[[0, 5]].sum()):
        with pytest.raises(RuntimeError, match="changed in place"):
            total.backward()


def with_gradient(h: Tensor) -> None:
    h.mul_(3)


def twice(h: Tensor) -> None:
    by_version(h)
    h.mul_(3)


@pytest.mark.parametrize("change", [with_gradient, by_version, twice])
def test_gradients_flow_to_the_node_that_sums_had(change: Callable[[Tensor], None]) -> None:
    data, layout = make_graph(Group.current("cpu"))
    offloaded = offload(data, layout, Chunks.even(layout, 3), PLENTY)
    w = torch.eye(data.x.shape[1], dtype=torch.float64, requires_grad=True)

    def gradient(graph: Data) -> Tensor:
        hidden = graph.structure.spmm("copy_u", "sum", F.linear(graph.x, w))
        double = hidden * 2
        change(hidden)
        return torch.autograd.grad(double.sin().sum() + hidden.sum(), w)[0]

    torch.testing.assert_close(gradient(offloaded), gradient(data))


def test_all_ranks_refuse_rows_that_changed_on_one() -> None:
    run_ranks(change_a_row_of_one_rank, 3)


def change_a_row_of_one_rank() -> None:
    x = make(Group.current("cpu"), 3)[0]
    rows = distribute(torch.ones(NODES, 1, dtype=torch.float64), x.row_layout)
    late = x * rows
    rows[0] = 2.0
    with pytest.raises(RuntimeError, match="changed in place"):
        late.full_tensor()


def test_weights_of_edges_may_change_between_epochs() -> None:
    run_ranks(change_weights, 2)


def change_weights() -> None:
    data, layout = make_graph(Group.current("cpu"))
    offloaded = offload(data, layout, Chunks.even(layout, 3), PLENTY)
    w = torch.eye(data.x.shape[1], dtype=torch.float64, requires_grad=True)

    def gradient(graph: Data, weights: Tensor) -> Tensor:
        hidden = graph.structure.spmm("mul", "sum", F.linear(graph.x, w), weights)
        graph.structure.spmm("mul", "sum", hidden.tanh(), weights).square().sum().backward()
        grad, w.grad = w.grad, None
        assert grad is not None
        return grad

    for change in (by_version, by_data, by_numpy_of_rows, by_data):
        fresh = data.weights.clone()
        torch.testing.assert_close(gradient(offloaded, data.weights), gradient(data, fresh))
        change(data.weights)
    hidden = offloaded.structure.spmm("mul", "sum", F.linear(offloaded.x, w), data.weights)
    total = hidden.square().sum()
    by_data(data.weights)
    with pytest.raises(RuntimeError, match="changed in place"):
        total.backward()
