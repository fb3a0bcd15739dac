"""Functions of offloaded tensors equal those of plain tensors, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.fullgraph import RowLayout, distribute, keyed_random
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.edges.offloaded_csc import OffloadedCsc
from peergraph.fullgraph.offload.functions.gathering import store_resident
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.offload.tensor.row_space import RowSpaces
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.partitioned import shuffled_layout
from tests.fullgraph.partitioned_cases import assert_none_failed

NODES = 23
Case = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
assert OffloadedCsc  # its module registers the rules


class Doubled(torch.autograd.Function):
    """A function of a user, whose gradient is not that of its formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


def in_place(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    h = x * 2
    before = h * 3
    h += s
    h.relu_()
    return before + h


def columns_in_place(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    h = x.clone()
    h[:, 1] = s.squeeze(1)
    return h * h


def plain_rows_in_place(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    values = torch.arange(NODES * 6.0, dtype=w.dtype).view(NODES, 6).cos() * w[0]
    h = x * 2
    h[:, 1] = values[:, 1]
    h[:, 3:] = values[:, 3:]
    rest = x.clone()
    rest[:] = values
    return h + rest


def with_autocast(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        h = F.linear(x.float(), w.detach().float())
    return h.double()


def without_grad(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        h = x.exp()
    return x * h + (x + 1).detach()


def used_before_and_after(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    h = F.linear(x, w)
    before = h.sigmoid()
    total = h.square().sum()
    return before + h * total


def differentiated_before(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """As in adversarial training: the discriminator's loss is differentiated first."""
    h = F.linear(x, w).tanh()
    total = h.mean(0)
    judge = torch.full_like(w[0], 0.5).requires_grad_()
    for rows in (
        h.detach(),
        torch.randn_like(h),
        (h * total).detach(),
        (s * h[mask].sum()).detach(),
    ):
        (rows @ judge[: rows.shape[1]]).sigmoid().mean().backward()
    return h * total + judge.grad


def written_rows(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """As PyG's MFConv, and by mask, range and number."""
    h = x * 2
    out = h.new_empty(h.shape)
    for value in (False, True):
        ids = (mask == value).nonzero().view(-1)
        out.index_copy_(0, ids, F.linear(h.index_select(0, ids), w * (1 + value)))
    out[3:5] = 0.5
    out[mask, :2] = h[mask, 1:3].sin()
    out[torch.tensor([7, 1])] = w[:2]
    return out * s


def written_elements(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """By masks of elements, and through parts of a range."""
    h = x * 2
    h[h > 1] = 0.5
    h[(x * s) < -1] = w[0, 0]
    rows = h[3:9]
    rows[:, 1] = 5.0
    del rows
    h[4:8][:, 2:4].mul_(3)
    values = x.detach() * 2
    values[10:13][:, 0].add_(7)
    return h * values


def all_rows_written(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """By masks and ids of all rows, as layers write each type of nodes where there is one type."""
    h, out, every = x * 2, torch.zeros_like(x), mask | ~mask
    for of_type in (every, ~every):
        out[of_type] = F.linear(h[of_type], w)
    ids = every.nonzero().view(-1)
    return out * s + torch.zeros_like(h).index_copy(0, ids, h.index_select(0, ids).sin())


def samples_of_rows(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """Layers of a batch with a sample for each row."""
    h = (x * s).view(-1, 2, 3)
    h = F.scaled_dot_product_attention(h, h * 2, h.sin())
    return F.max_pool1d(h + F.conv1d(h, w[:2].view(2, 2, 3), padding=1), 2).flatten(1)


def among_rows(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """Functions of other rows that run on the device, of single columns."""
    v, chosen = (x * s)[:, 0], x.softmax(1).max(1).values > 0.4
    top, ids = v.topk(3)
    results = [torch.where(chosen & mask)[0], (v > 0).nonzero().view(-1), torch.unique(v > 0), ids]
    counts = torch.cat([torch.stack([part.sum(), part.amax()]).double() for part in results])
    return torch.cat([top, counts, v.diff().square().sum().view(1), torch.histc(v.detach(), 4)])


def complex_numbers(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """As RotatE and ComplEx rotate and multiply entities."""
    z = torch.complex(x[:, :3], x[:, 3:]) * torch.polar(torch.ones_like(w[0, :3]), w[1, :3])
    turned = torch.view_as_complex((x * s).view(-1, 3, 2))
    return torch.cat([(z * turned.conj()).real, z.abs(), torch.view_as_real(turned).flatten(1)], 1)


def graph_norm(x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> Tensor:
    """As PyG's layer, with the number of each row's graph."""
    graph = x.new_zeros(x.shape[0], dtype=torch.long)
    count = w.new_zeros(1).scatter_add_(0, graph, x.new_ones(x.shape[0]))

    def mean(rows: Tensor) -> Tensor:
        index = graph.view(-1, 1).expand_as(rows)
        return rows.new_zeros(1, 6).scatter_add_(0, index, rows) / count

    out = x - mean(x).index_select(0, graph) * w[1]
    return w[0] * out / (mean(out.pow(2)) + 1e-5).sqrt().index_select(0, graph)


ROW_CASES: dict[str, Case] = {
    "complex numbers": complex_numbers,
    "all rows written": all_rows_written,
    "samples of rows": samples_of_rows,
    "distances": lambda x, s, mask, w: torch.cdist(x * s, (x * 2)[torch.tensor([4, 1, 9])]),
    "pointwise": lambda x, s, mask, w: (x * 2 + s).tanh() / (1 + x.abs()),
    "written elements": written_elements,
    "row and column": lambda x, s, mask, w: x * s - w[0],
    "linear": lambda x, s, mask, w: F.linear(x, w).relu(),
    "matrix product": lambda x, s, mask, w: x @ w.t(),
    "views": lambda x, s, mask, w: x.view(-1, 2, 3).transpose(1, 2).flatten(1),
    "repeated rows": lambda x, s, mask, w: x.view(-1, 3).cumsum(1).view(-1, 6),
    "cat": lambda x, s, mask, w: torch.cat([x, x * s, s], dim=-1),
    "stack": lambda x, s, mask, w: torch.stack([x, x.exp()], dim=1).mean(1),
    "split": lambda x, s, mask, w: (lambda a, b: a * b)(*x.split(3, dim=1)),
    "chunk with gap": lambda x, s, mask, w: x.chunk(3, dim=1)[1],
    "max of a row": lambda x, s, mask, w: x.max(dim=1, keepdim=True).values * x,
    "softmax": lambda x, s, mask, w: x.softmax(-1).log(),
    "layer norm": lambda x, s, mask, w: F.layer_norm(x, (6,), w[0], w[1]),
    "where": lambda x, s, mask, w: torch.where(mask.unsqueeze(1), x, -x),
    "columns": lambda x, s, mask, w: x[:, 1:4] * x[:, [0, 2, 5]],
    "column": lambda x, s, mask, w: x[:, 2],
    "keywords": lambda x, s, mask, w: torch.add(input=x, other=s, alpha=3),
    "list": lambda x, s, mask, w: torch.sum(torch.stack([x, 2 * x]), dim=0),
    "in place": in_place,
    "columns in place": columns_in_place,
    "plain rows in place": plain_rows_in_place,
    "dropout": lambda x, s, mask, w: F.dropout(x, 0.5) + F.dropout(x * 2, 0.3),
    "feature dropout": lambda x, s, mask, w: F.dropout1d(x.view(-1, 2, 3), 0.5).flatten(1),
    "noise": lambda x, s, mask, w: x + torch.randn_like(x) * s,
    "user's function": lambda x, s, mask, w: Doubled.apply(x.sin()) * x,
    "autocast": with_autocast,
    "without gradients": without_grad,
    "used before and after a sum": used_before_and_after,
    "differentiated before": differentiated_before,
    "rows of a permutation": lambda x, s, mask, w: (
        x * x.sin()[torch.arange(len(x)) * 2 % len(x)] + x[torch.arange(len(x)).flip(0)] * s
    ),
    "number type": lambda x, s, mask, w: x.float().double() + (x > 0).double(),
    "zeros": lambda x, s, mask, w: torch.zeros_like(x) + x.new_ones(x.shape[0], 1) * x,
    "batch norm": lambda x, s, mask, w: F.batch_norm(x, None, None, w[0], w[1], training=True),
    "softmax over rows": lambda x, s, mask, w: x.softmax(0) * s,
    "logarithm of softmax over rows": lambda x, s, mask, w: F.linear(x, w).log_softmax(0),
    "normalised by deviation": lambda x, s, mask, w: (lambda h: (h - h.mean()) / h.std())(x @ w),
    "graph norm": graph_norm,
    "written rows": written_rows,
    "rows merged with copies": lambda x, s, mask, w: (
        x.view(-1, 2, 3).transpose(0, 1).reshape(-1, 3).softmax(1)
    ),
    "instance norm over rows": lambda x, s, mask, w: (
        (
            (
                lambda m, v: (
                    F.instance_norm(x.t().unsqueeze(0), m, v, w[0], w[1]) + m.sum() + v.prod()
                )
            )(w.new_zeros(6), w.new_ones(6))
        )
        .squeeze(0)
        .t()
    ),
    "native batch norm": lambda x, s, mask, w: torch.native_batch_norm(
        x, w[0], w[1], None, None, True, 0.1, 1e-5
    )[0],
    "all rows by mask": lambda x, s, mask, w: x.sin()[mask | ~mask] * s,
    "mask of two dimensions": lambda x, s, mask, w: (
        (x * 2).unsqueeze(0)[(mask | ~mask).unsqueeze(0)] * x
    ),
    "linear attention": lambda x, s, mask, w: (
        lambda k: (x @ (k.transpose(-2, -1) @ (x * s))) / (x @ k.sum(-2).unsqueeze(-1))
    )((x @ w).relu() + 0.01),
    "bilinear": lambda x, s, mask, w: F.bilinear(x, s, w.view(6, 6, 1)),
}

PLAIN_CASES: dict[str, Case] = {
    "sum": lambda x, s, mask, w: (x * s).sum(),
    "sums of columns": lambda x, s, mask, w: x.exp().sum(0),
    "mean": lambda x, s, mask, w: F.linear(x, w).relu().mean(),
    "means of columns": lambda x, s, mask, w: x.square().mean(dim=0, keepdim=True),
    "maximum": lambda x, s, mask, w: x.max(0).values,
    "norm": lambda x, s, mask, w: torch.linalg.vector_norm(x),
    "product": lambda x, s, mask, w: x.t() @ x,
    "mean squared error": lambda x, s, mask, w: F.mse_loss(F.linear(x, w), x * s),
    "selected": lambda x, s, mask, w: F.linear(x, w)[mask].square().sum(),
    "two selections": lambda x, s, mask, w: (
        x.sin()[mask].sum() + (x.sin()[~mask] * 2).sum() + x.square().sum()
    ),
    "ids": lambda x, s, mask, w: x[torch.tensor([5, 1, 5, 22])].square().sum(0),
    "joined with selected rows": lambda x, s, mask, w: (
        torch.cat([(x * s).sum(1), (x @ w)[torch.tensor([5, 1, 5])].sum(-1)]).sin().sum(0)
    ),
    "gathered on the CPU": lambda x, s, mask, w: (
        (x @ w).full_tensor().sin().sum(0) if hasattr(x, "full_tensor") else (x @ w).sin().sum(0)
    ),
    "two lists of ids": lambda x, s, mask, w: (
        lambda z: (z[torch.tensor([5, 1, 5, 22])] * z[torch.tensor([0, 3, 1, 1])]).sum(0)
    )(x @ w),
    "range": lambda x, s, mask, w: (x * s)[3:9].sum(0),
    "one row": lambda x, s, mask, w: x.exp()[-2] * 2,
    "row and columns": lambda x, s, mask, w: x[mask, 1:3].sum(0),
    "standard deviation": lambda x, s, mask, w: F.linear(x, w).std(0),
    "variance and mean": lambda x, s, mask, w: sum(torch.var_mean(x.sin(), 0, correction=0)),
    "largest of columns": lambda x, s, mask, w: (x.round() * w[0]).amax(0),
    "smallest of all": lambda x, s, mask, w: x.clamp(min=-1).amin(),
    "sum of exponentials": lambda x, s, mask, w: F.linear(x, w).logsumexp(0),
    "largest of groups": lambda x, s, mask, w: (w[:2] * 0).scatter_reduce(
        0, mask.long().view(-1, 1).expand_as(x), x.round(), "amax", include_self=False
    ),
    "added to": lambda x, s, mask, w: torch.addmm(w, x.t(), x * s),
    "scattered to a plain tensor": lambda x, s, mask, w: (w[:3] * 2).index_add_(
        0, mask.long() + (s.squeeze(1) > 0).long(), x.sin()
    ),
    "among rows": among_rows,
    "statistics": lambda x, s, mask, w: ((x - x.mean(0)) ** 2).mean(0),
}

REFUSED: dict[str, Case] = {
    "sort of rows": lambda x, s, mask, w: x.sort(0),
    "local rows": lambda x, s, mask, w: x._local,
    "view in place": lambda x, s, mask, w: (lambda h: (h, h.view(-1, 2, 3).mul_(2)))(x * 2),
    "gradient of a tensor between two layers": lambda x, s, mask, w: (
        lambda h: torch.autograd.grad(h.exp().sum(), h)
    )(x * 2),
    "gradient of a gradient": lambda x, s, mask, w: torch.autograd.grad(
        x.square().sum(), x, create_graph=True
    ),
}


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mask = torch.rand(NODES, generator=generator) < 0.4
    return normal(NODES, 6), normal(NODES, 1), mask, normal(6, 6)


def run(case: Case, x: Tensor, s: Tensor, mask: Tensor, w: Tensor) -> list[Tensor | None]:
    """The result, and the gradients of `x` and of `w`."""
    x, w = x.detach().requires_grad_(), w.clone().requires_grad_()
    torch.manual_seed(4)
    result = case(x, s, mask, w)
    if result.requires_grad:
        (result.cos() if result.dim() < 2 else result.square()).sum().backward()
    return [full(result), full(x.grad), full(w.grad)]


def full(x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    return x.full_tensor() if hasattr(x, "full_tensor") else x.detach()


def make(group: Group, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, s, mask, w = inputs()
    layout: RowLayout = shuffled_layout(group, NODES)
    spaces = RowSpaces(RowAllocator(group, 0, 1 << 24))
    space = spaces.add(layout, Chunks.even(layout, count))
    offloaded = store_resident(space, distribute(x, layout))
    return offloaded, distribute(s, layout), distribute(mask, layout), w


def failures_on_rank(chunks: tuple[int, ...]) -> dict[str, str]:
    group = Group.current(timeout=60)
    failed = {}
    for count in chunks:
        x, s, mask, w = make(group, count)
        for name, case in {**ROW_CASES, **PLAIN_CASES}.items():
            with keyed_random():
                expected = run(case, *inputs())
            try:
                actual = run(case, x, s, mask, w)
                for place, (a, b) in enumerate(zip(actual, expected, strict=True)):
                    if b is None:
                        assert a is None or not a.any(), f"gradient {place} is not zero"
                        continue
                    a = torch.zeros_like(b) if a is None else a
                    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
            except Exception as error:
                failed[f"{name}, {count} chunks"] = f"{type(error).__name__}: {error}"
    return failed


@pytest.mark.parametrize(("world_size", "chunks"), [(1, (1, 4)), (2, (3,))])
def test_functions_equal_plain_ones(world_size: int, chunks: tuple[int, ...]) -> None:
    assert_none_failed(run_ranks(failures_on_rank, world_size, chunks, timeout_s=300))


def test_results_with_rows_are_offloaded() -> None:
    x, s, mask, w = make(Group.current("cpu"), 3)
    for name, case in ROW_CASES.items():
        assert isinstance(case(x, s, mask, w), OffloadedTensor), name


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_needs_all_rows_is_refused(name: str) -> None:
    x, s, mask, w = make(Group.current("cpu"), 3)
    with pytest.raises(NotImplementedError):
        REFUSED[name](x.detach().requires_grad_(), s, mask, w)


def test_equal_columns_of_a_square_are_no_rows() -> None:
    x, _, _, w = make(Group.current("cpu"), 3)
    maps = w.new_ones(NODES, 6).tril()
    square, rows = F.linear(x, maps), inputs()[0] @ maps.t()
    equal = torch.arange(NODES, dtype=w.dtype).view(-1, 1).expand(NODES, NODES)
    torch.testing.assert_close((square @ equal).full_tensor(), rows @ equal)
    column = torch.arange(NODES, dtype=w.dtype).view(-1, 1).requires_grad_()
    results = column.expand(NODES, NODES) @ square
    expected = column.expand(NODES, NODES) @ rows
    torch.testing.assert_close(results, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(r.cos().sum(), column) for r in (results, expected))
    )
    for backward in (torch.ops.aten._softmax_backward_data, torch.ops.aten.tanh_backward):
        options = (1, w.dtype) if backward is torch.ops.aten._softmax_backward_data else ()
        with pytest.raises(ValueError, match=r"fullgraph\.like"):
            backward(equal, square, *options)


def test_attributes() -> None:
    x, _, _, w = make(Group.current("cpu"), 3)
    assert not (x * 2).requires_grad
    w.requires_grad_()
    h = F.linear(x, w)
    assert h.requires_grad
    assert not h.is_leaf
    assert h.grad_fn is not None
    assert not h.detach().requires_grad
    assert not (h > 0).requires_grad
    with torch.no_grad():
        assert not F.linear(x, w).requires_grad
    assert h.shape == (NODES, 6)
    assert (h.dim(), len(h), h.numel(), h.dtype) == (2, NODES, NODES * 6, torch.float64)
    assert h.t().partitioned_dim == 1
    assert "to be computed" in repr(h)


def test_inference_mode() -> None:
    x, s, mask, w = make(Group.current("cpu"), 3)
    rows, _, plain_mask, _ = inputs()
    with torch.inference_mode():
        out = F.linear(x * s, w)
        selected, everything = out[mask], out.full_tensor()
        totals = w.new_zeros(2, x.shape[1]).index_add_(0, mask.long(), x)
    expected = F.linear(rows * inputs()[1], w)
    torch.testing.assert_close(totals[1], rows[plain_mask].sum(0))
    torch.testing.assert_close(everything, expected)
    torch.testing.assert_close(selected.full_tensor(), expected[plain_mask])
