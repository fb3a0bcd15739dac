"""Hooks on the tensors that autograd saves, and models that are computed again."""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from peergraph.aggregate import AttentionSum
from peergraph.fullgraph import PartitionedCsc, RowLayout, distribute
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.memory import Group
from peergraph.testing import run_ranks

from .offload.offloaded_runs import PLENTY, Data, make_graph, offload
from .partitioned import partition
from .partitioned_cases import Inputs, check_cases


def to_bytes(tensor: Tensor) -> bytes:
    with io.BytesIO() as file:
        torch.save(tensor, file)
        return file.getvalue()


def of_bytes(saved: bytes) -> Tensor:
    tensor: Tensor = torch.load(io.BytesIO(saved))
    return tensor


HOOKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "save_on_cpu": save_on_cpu,
    "files": lambda: saved_tensors_hooks(to_bytes, of_bytes),
    "copies": lambda: saved_tensors_hooks(Tensor.clone, lambda tensor: tensor),
    "transposed": lambda: saved_tensors_hooks(
        lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
        lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
    ),
}
MODELS: dict[str, Callable[[Inputs], Any]] = {
    "linear": lambda i: F.linear(i.x, i.w.t(), i.w[0]).relu() * i.s,
    "batch norm": lambda i: F.batch_norm(i.x, None, None, i.g, i.b, True).tanh(),
    "frozen batch norm": lambda i: F.batch_norm(i.x, i.b.detach(), i.g.detach().square(), i.g, i.b),
    "instance norm": lambda i: F.instance_norm(i.x.t().unsqueeze(0)),
    "softmax": lambda i: i.x.softmax(0) @ i.w,
    "columns": lambda i: F.layer_norm(i.x, [6], i.g, i.b).log_softmax(1) * i.h.flatten(1).cumsum(1),
    "groups": lambda i: F.group_norm(i.x, 2, i.g, i.b).logsumexp(0),
    "maximum": lambda i: (i.x * i.y).amax(0) + i.x.max(0).values,
    "loss": lambda i: F.cross_entropy(i.x[i.mask], i.labels[i.mask], i.g.detach().square()),
    "rows": lambda i: i.x[i.ids] * i.y[3] + i.x.std(0),
}


def within(hooks: str, model: str) -> Callable[[Inputs], Any]:
    def run(inputs: Inputs) -> Any:
        with HOOKS[hooks]():
            return MODELS[model](inputs)

    return run


CASES = {f"{hooks}, {model}": within(hooks, model) for hooks in HOOKS for model in MODELS}


@pytest.mark.parametrize("ranks", [1, 3])
def test_hooks_on_saved_tensors(ranks: int) -> None:
    check_cases(__name__, ranks)


def sums(data: Data, w: Tensor) -> Tensor:
    h = data.structure.spmm("copy_u", "sum", F.linear(data.x, w).relu())
    return data.structure.spmm("mul", "mean", F.dropout(h, 0.5), data.weights) * h.sigmoid()


def loss_of(data: Data, w: Tensor) -> Tensor:
    return F.cross_entropy(sums(data, w)[data.mask], data.y[data.mask])


def loss_with_checkpoint(use_reentrant: bool) -> Callable[[Data, Tensor], Tensor]:
    def run(data: Data, w: Tensor) -> Tensor:
        h: Tensor = checkpoint(lambda w: sums(data, w), w, use_reentrant=use_reentrant)
        return F.cross_entropy(h[data.mask], data.y[data.mask])

    return run


@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_under_hooks(ranks: int) -> None:
    run_ranks(train_under_hooks, ranks)


def train_under_hooks() -> None:
    data, layout = make_graph(Group.current("cpu"))

    def gradient(of: Data, hooks: Any, loss: Callable[[Data, Tensor], Tensor] = loss_of) -> Tensor:
        torch.manual_seed(0)
        w = torch.eye(6, dtype=torch.float64, requires_grad=True)
        with hooks():
            total = loss(of, w)
        total.backward()
        assert w.grad is not None
        return w.grad

    expected = gradient(data, nullcontext)
    for graph in (data, *(offload(data, layout, Chunks.even(layout, n), PLENTY) for n in (1, 3))):
        for hooks in HOOKS.values():
            torch.testing.assert_close(gradient(graph, hooks), expected)
        for use_reentrant in (False, True):
            actual = gradient(graph, nullcontext, loss_with_checkpoint(use_reentrant))
            torch.testing.assert_close(actual, expected)


def test_ranks_without_rows_of_a_type_compute_again() -> None:
    results = run_ranks(attend_again, 3)
    [expected] = run_ranks(attend_again, 1)
    for of_rank in results:
        torch.testing.assert_close(of_rank, expected)


def attend_again() -> list[Tensor]:
    """Gradients of a layer of attention from few nodes of one type to many of another, and back."""
    group = Group.current("cpu", timeout=60)
    few, many = RowLayout.contiguous(group, 2), RowLayout.contiguous(group, 9)
    generator = torch.Generator().manual_seed(1)
    edges = torch.stack([torch.randint(2, (20,), generator=generator), torch.arange(20) % 9])
    there, back = partition(edges, few, many), partition(edges.flip(0), many, few)
    gradients: list[Tensor] = []
    for dynamic, use_reentrant in itertools.product((False, True), repeat=2):
        shapes = (2, 2, 4), (9, 2, 4), (2, 4)
        leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        x, y, att = (leaf.requires_grad_() for leaf in leaves)
        layer = functools.partial(attend, there, back, dynamic)
        rows = distribute(x, few), distribute(y, many)
        parts = checkpoint(layer, *rows, att, use_reentrant=use_reentrant)
        sum(part.sin().sum() for part in parts).backward()
        gradients += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return gradients


def attend(
    there: PartitionedCsc, back: PartitionedCsc, dynamic: bool, x: Tensor, y: Tensor, att: Tensor
) -> tuple[Tensor, Tensor]:
    if dynamic:
        of_y, of_x = AttentionSum(x, right=y, att=att), AttentionSum(y, right=x, att=att)
    else:
        left, right = (x * att).sum(-1), (y * att).sum(-1)
        of_y, of_x = AttentionSum(x, left, right), AttentionSum(y, right, left)
    return there.attention(of_y), back.attention(of_x)
