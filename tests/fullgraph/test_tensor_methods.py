"""Autograd's tools, copies, conversions and new tensors; what is refused, and the way out."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from peergraph.fullgraph import (
    PartitionedTensor,
    RowLayout,
    distribute,
    from_local,
    like,
    replicated,
)
from peergraph.fullgraph.tensor import copies
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.partitioned_cases import (
    Case,
    Inputs,
    check_cases,
    make_inputs,
    make_layout,
    partition,
)


def conversions(i: Inputs) -> list[object]:
    x = i.x.detach()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return [
        *(x.cpu() * 2, torch.from_numpy(x.numpy()), x.tolist(), i.labels.tolist()),
        *(torch.load(file), pickle.loads(pickle.dumps(i.labels)), copy.deepcopy(i.x) * i.y),
        *(x.to("cpu").sum(), x.to(torch.float32), x.to("cpu", torch.float32), x.double()),
        *(i.x.cpu() * 3, len(x), x[0].tolist(), x.sum().item(), x[2, 3].item()),
        torch.as_tensor(x.__array__()),
    ]


def new_tensors(i: Inputs) -> list[Tensor]:
    x = i.x
    return [
        *(x.new_zeros(13, 4) + x[:, :4], x.new_ones(13) + i.v, x.new_full((13, 1), 2.5) * i.s),
        *(torch.zeros_like(x) + x, torch.ones_like(i.mask), torch.full_like(i.v, 3) * i.v),
        *(x.new_zeros(4), x.new_tensor([1.0, 2.0]), torch.empty_like(x).fill_(2), x.new_zeros(())),
        *(torch.zeros_like(x, dtype=torch.int32), torch.ones_like(i.labels, dtype=torch.float64)),
        *(x.new_empty(13, 2).zero_() + x[:, :2], x.t().new_ones(2, 13) + x[:, :2].t()),
    ]


def square(i: Inputs) -> list[Tensor]:
    """As many columns as rows: where a new tensor could be taken for the wrong one, it raises."""
    x = (i.x @ torch.linspace(-1, 1, 78, dtype=torch.float64).view(6, 13).to(i.b.device)).detach()
    calls: list[Callable[[], Tensor]] = [
        lambda: x + x.new_ones(13),
        lambda: x @ x.new_full((13, 4), 2.0),
        lambda: x.new_full((13, 13), 2.0) @ x,
        lambda: F.linear(x, x.new_full((13, 13), 2.0), x.new_ones(13)),
        lambda: F.layer_norm(x, (13,), x.new_full((13,), 2.0), x.new_ones(13)),
        lambda: F.batch_norm(x, x.new_zeros(13), x.new_ones(13), training=True),
        lambda: torch.where(x.new_zeros(13).bool(), x, 0),
        lambda: x.sum(0) * x.new_full((13,), 3.0),
        lambda: x.new_zeros(13).add_(x.sum(0)),
    ]
    for call in calls if _is(x) else ():
        with pytest.raises((ValueError, NotImplementedError)):
            call()
    return [
        x.new_full((13,), 2.0) * x[:, 0],
        x.new_ones(13, 13) * x,
        F.linear(x, x.new_full((3, 13), 2.0)),
        x.new_ones(1, 13) * 2 + x,
        torch.stack([x[:, 0], x.new_ones(13)]),
        F.embedding(torch.tensor([1, 3], device=i.b.device), x.new_ones(13, 4)),
    ]


def hooks(i: Inputs) -> list[Tensor]:
    grads: list[Tensor] = []
    h = i.x * 2
    h.register_hook(lambda grad: grads.append(grad.detach()) or grad * 3)  # type: ignore[func-returns-value]
    h.retain_grad()
    (h * i.y.detach()).sum().backward()
    return [h.grad, i.x.grad.clone(), *grads]


def gradients(i: Inputs) -> list[Tensor]:
    out = i.x @ i.w
    first = torch.autograd.grad(out, [i.x, i.w], grad_outputs=torch.ones_like(out))
    return list(first)


def leaves(i: Inputs) -> list[object]:
    x = i.x.detach()
    x.requires_grad_()
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    grad = x.grad.clone()
    x.grad.zero_()
    y = x.detach()
    return [grad, x.grad, y.requires_grad, x.is_leaf, (x * 1).is_leaf, (x * 1).requires_grad]


def replaced_values(i: Inputs) -> list[Tensor]:
    """Adversarial perturbations of features, as in PyG's FLAG example."""
    noise = torch.zeros_like(i.x).requires_grad_()
    replaced = i.y.detach() * 1
    replaced.data = replaced * 3
    losses = []
    for _ in range(2):
        losses.append(((i.x.detach() + noise) * replaced).square().sum())
        losses[-1].backward()
        noise.data = noise.detach() + 0.1 * noise.grad.sign()
        noise.grad[:] = 0
    return [*(loss.detach() for loss in losses), noise.detach(), noise.grad, replaced]


def trained_rows(i: Inputs) -> list[Tensor]:
    embedding = nn.Parameter(i.x.detach().clone())
    weight = nn.Parameter(i.w.detach().clone())
    optimizer = torch.optim.Adam([embedding, weight], lr=0.1, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(embedding @ weight, i.y[:, :4].detach()).backward()
        nn.utils.clip_grad_norm_([weight], 0.5)
        optimizer.step()
    return [embedding.detach(), weight.detach()]


def network(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return (torch.relu(x @ w) @ w.t() + x.mean(0)) * y


def attention(i: Inputs) -> Tensor:
    """A layer that mixes rows and heads."""
    heads = (i.x @ i.w).view(-1, 2, 2)
    score = (heads * i.b[:4].view(1, 2, 2)).sum(-1)
    return (heads * F.leaky_relu(score, 0.2).softmax(dim=0).unsqueeze(-1)).flatten(1)


def refused(i: Inputs) -> int:
    """Errors of partitioned tensors; the count is the same for plain ones."""
    if not isinstance(i.x, PartitionedTensor):
        return 25
    full = make_inputs(i.w.device).x
    labels = make_inputs(i.w.device).labels
    other = distribute(full, RowLayout.contiguous(i.x.row_layout.group, 13))
    column = i.labels.unsqueeze(1)
    zeros = torch.zeros_like(full.detach())
    calls = [
        (NotImplementedError, "y.new_zeros", lambda: zeros.scatter_(1, column, 1.0)),
        (NotImplementedError, "y.new_zeros", lambda: zeros.scatter_(1, column, i.s.detach())),
        (NotImplementedError, "y.new_zeros", lambda: zeros.scatter_add_(1, column, i.s.detach())),
        (ValueError, "peergraph.fullgraph.like", lambda: i.x + full),
        (ValueError, "peergraph.fullgraph.like", lambda: full.t() @ i.x),
        (ValueError, "peergraph.fullgraph.like", lambda: torch.cat([i.x, full], 1)),
        (ValueError, "peergraph.fullgraph.like", lambda: F.mse_loss(i.x, full)),
        (
            ValueError,
            "peergraph.fullgraph.like",
            lambda: F.cross_entropy(i.x, labels),
        ),
        (NotImplementedError, "rows and as many columns", lambda: i.x @ i.y.t()),
        (NotImplementedError, "to_local", lambda: i.x.cumsum(0)),
        (NotImplementedError, "to_local", lambda: torch.linalg.svd(i.x)),
        (NotImplementedError, "full_tensor", lambda: i.x.sort(0)),
        (NotImplementedError, "runs over rows", lambda: torch.bucketize(i.x, i.v)),
        (NotImplementedError, "runs over rows", lambda: torch.searchsorted(i.v, i.h)),
        (RuntimeError, "no dimensions", lambda: i.x.index_fill(0, i.ids, i.c.view(1))),
        (NotImplementedError, "share_memory_", lambda: i.x.detach().share_memory_()),
        (NotImplementedError, "apply_", lambda: i.x.detach().apply_(abs)),
        (NotImplementedError, "data: the new values", lambda: _set_data(i.x.detach(), full)),
        (NotImplementedError, "data: the new values", lambda: _set_data(i.x.detach(), i.v)),
        (NotImplementedError, "sparse=True", lambda: F.embedding(i.labels, i.w, sparse=True)),
        (NotImplementedError, "padding_idx", lambda: F.embedding(i.labels, i.x, padding_idx=1)),
        (IndexError, "out of bounds", lambda: i.x[13]),
        (IndexError, "row ids must be in", lambda: i.x[torch.tensor([40])]),
        (IndexError, "the shape of the mask", lambda: i.x[torch.ones(4).bool()]),
        (ValueError, "rows of rank", lambda: from_local(full[:9], i.x.row_layout.repeat(2))),
    ]
    for error, message, call in calls:
        with pytest.raises(error, match=message):
            call()
    if i.x.row_layout.group.world_size > 1:  # equal where one rank has all rows in another order
        with pytest.raises(ValueError, match="different layouts"):
            i.x + other
    return len(calls)


def _set_data(x: Tensor, value: Tensor) -> None:
    x.data = value


CASES: dict[str, Case] = {
    "conversions": conversions,
    "new tensors": new_tensors,
    "square": square,
    "hooks": hooks,
    "gradients": gradients,
    "leaves": leaves,
    "replaced values": replaced_values,
    "trained rows": trained_rows,
    "checkpoint": lambda i: checkpoint(network, i.x, i.w, i.y, use_reentrant=False),
    "reentrant checkpoint": lambda i: checkpoint(network, i.x, i.w, i.y, use_reentrant=True),
    "attention": attention,
    "full": lambda i: (i.x.full_tensor() * i.b).sum(0) if _is(i.x) else (i.x * i.b).sum(0),
    "local": lambda i: from_local(i.x.to_local() * 2, i.x.row_layout) if _is(i.x) else i.x * 2,
    "replicated": lambda i: (
        from_local(i.x.to_local() * replicated(i.b, i.x.row_layout.group), i.x.row_layout)
        if _is(i.x)
        else i.x * i.b
    ),
    "like": lambda i: like(i.x, i.x.full_tensor() * 2) + i.x if _is(i.x) else i.x * 3,
    "refused": refused,
}


def _is(x: Tensor) -> bool:
    return isinstance(x, PartitionedTensor)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_methods(world_size: int) -> None:
    check_cases(__name__, world_size)


def test_repr_names_the_layout_and_gathers_nothing() -> None:
    x = distribute(torch.ones(3, 2), RowLayout.contiguous(Group.current(device="cpu"), 3))
    assert "PartitionedTensor(shape=(3, 2), partitioned_dim=0, layout=RowLayout(size=3" in repr(x)
    assert "requires_grad" in str(x.requires_grad_())


def test_gathering_much_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    x = distribute(torch.ones(3, 2), RowLayout.contiguous(Group.current(device="cpu"), 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.cpu()
    monkeypatch.setattr(copies, "GATHER_WARNING_BYTES", 24)
    with pytest.warns(UserWarning, match=r"cpu\(\) gathers"):
        x.cpu()


def _unequal_parameters() -> list[str]:
    group = Group.current(timeout=60)
    i = partition(make_inputs(group.device), make_layout(group))
    weight = nn.Parameter(make_inputs(group.device).w + group.rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = (i.x @ weight).full_tensor()
        (i.x @ weight).full_tensor()
    torch.testing.assert_close(result, make_inputs(group.device).x @ make_inputs(group.device).w)
    torch.testing.assert_close(weight.detach(), make_inputs(group.device).w)
    with pytest.raises(ValueError, match="ids must be equal on all ranks"):
        i.x[torch.tensor([group.rank])]
    return [str(w.message) for w in caught if "other values" in str(w.message)]


def test_unequal_parameters_become_those_of_rank_0() -> None:
    first, second = run_ranks(_unequal_parameters, 2)
    assert len(first) == 1
    assert second == []


def _compiled() -> None:
    group = Group.current(timeout=100)
    inputs = make_inputs(group.device)
    i = partition(inputs, make_layout(group))
    compiled = torch.compile(network, backend="eager")
    w = inputs.w.clone().requires_grad_()
    actual = compiled(i.x, w, i.y)
    actual.sum().backward()
    expected_w = inputs.w.clone().requires_grad_()
    expected = network(inputs.x, expected_w, inputs.y)
    expected.sum().backward()
    torch.testing.assert_close(actual.full_tensor().detach(), expected.detach())
    torch.testing.assert_close(w.grad, expected_w.grad)


def test_compiled_functions_are_right() -> None:
    run_ranks(_compiled, 2)
