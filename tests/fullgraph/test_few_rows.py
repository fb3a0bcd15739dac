"""Graphs, ranks and chunks of one row or none: the results of plain tensors, or one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.conversions import distribute
from peergraph.memory import Group
from peergraph.testing import run_ranks

# Of rows [n, 3], a plain row [1, 3] that needs gradients, and a plain vector [3].
FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sum": lambda x, row, v: x + row,
    "product": lambda x, row, v: (x * row).sum(-1),
    "lerp": lambda x, row, v: torch.lerp(x, row, 0.3),
    "addcmul": lambda x, row, v: torch.addcmul(x, x, row),
    "vecdot": lambda x, row, v: torch.linalg.vecdot(x, row),
    "distance": lambda x, row, v: F.pairwise_distance(x, row),
    "loss": lambda x, row, v: F.mse_loss(x, row.expand_as(x), reduction="sum"),
    "norm": lambda x, row, v: F.layer_norm(x, (3,), v, row[0]),
    "addmv of a number": lambda x, row, v: torch.addmv(row.sum(), x, v),
    "addmv of one element": lambda x, row, v: torch.addmv(row[0, :1], x, v, beta=2, alpha=3),
    "addmm of a number": lambda x, row, v: torch.addmm(row.sum(), x, v.diag()),
    # Plain factors of equal rows, whose gradients autograd takes for rows.
    "baddbmm": lambda x, row, v: torch.baddbmm(
        x.unsqueeze(2), v.diag().repeat(len(x), 1, 1), row.t().repeat(len(x), 1, 1)
    ),
    "addmm of a row": lambda x, row, v: torch.addmm(row, x, v.diag()),
}


def make_rows(count: int, chunks: int | None) -> tuple[Tensor, Any]:
    """Returns plain rows [count, 3] and those of a full graph."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options: dict[str, Any] = {} if chunks is None else {"offload": True, "num_chunks": chunks}
    edges = torch.zeros(2, 1, dtype=torch.int64)
    return x, peergraph_pyg.full_graph(Data(edge_index=edges, x=x), **options).x


def results_of(function: Callable[..., Tensor], x: Any) -> list[Tensor]:
    """Returns the result of a function and its gradients, of all rows."""
    leaf = x.detach().clone().requires_grad_()
    row = torch.tensor([[0.3, -0.7, 1.1]], dtype=torch.float64, requires_grad=True)
    vector = torch.tensor([0.5, 1.5, -0.25], dtype=torch.float64, requires_grad=True)
    result = function(leaf, row, vector)
    result.cos().sum().backward()
    values: list[Any] = [result.detach(), leaf.grad, row.grad, vector.grad]
    whole = [v.full_tensor() if hasattr(v, "full_tensor") else v for v in values]
    return [part for part in whole if part is not None]


def differences(chunks: int | None) -> list[str]:
    texts = []
    for count in (1, 2, 5):
        plain, rows = make_rows(count, chunks)
        for name, function in FUNCTIONS.items():
            try:
                torch.testing.assert_close(results_of(function, rows), results_of(function, plain))
            except Exception as error:
                texts.append(f"{name} of {count} rows: {type(error).__name__}: {error}")
    return texts


@pytest.mark.parametrize("chunks", [None, 1, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_plain_rows_meet_few_rows(ranks: int, chunks: int | None) -> None:
    texts = run_ranks(differences, ranks, chunks)
    assert not any(texts), texts


def view_transposed(count: int) -> list[str]:
    """Returns how views of columns end that are no views of torch's."""
    x = make_rows(count, None)[1]
    ends = []
    for shape in ((3 * count,), (-1,), (count, 3)):
        try:
            x.t().view(shape)
            ends.append("")
        except RuntimeError as error:
            ends.append(str(error).split(";")[0])
    return ends


@pytest.mark.parametrize("count", [2, 4, 7])
def test_ranks_agree_on_what_is_a_view(count: int) -> None:
    plain = torch.zeros(count, 3).t()
    for ends in run_ranks(view_transposed, 3, count):
        for shape, end in zip(((3 * count,), (-1,), (count, 3)), ends, strict=True):
            with pytest.raises(RuntimeError, match="view size"):
                plain.view(shape)
            assert end, shape


# Functions of rows [n, 4] whose results may have other than contiguous strides.
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda x: x.t().exp(),
    "sum": lambda x: x.t() + x.t(),
    "last of three": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).sin(),
    "middle of three": lambda x: x.view(-1, 2, 2).permute(1, 0, 2).sin(),
    "columns of rows": lambda x: x.view(-1, 2, 2).transpose(1, 2).sin(),
    "norm": lambda x: F.normalize(x.t(), dim=0),
    "roll": lambda x: x.t().roll(1, 0),
    "halves": lambda x: F.glu(x.t(), 0),
    "activation": lambda x: F.elu(x.t()),
    "activation with bits": lambda x: F.relu(x.t().clone().requires_grad_()).detach(),
    "largest": lambda x: x.t().topk(3, 0).values,
    "sorted": lambda x: x.t().sort(0).values,
    "one of several": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).max(0).values,
    "heads": lambda x: torch.einsum("nhd,hdk->nhk", x.view(-1, 2, 2), _WEIGHT),
    "heads last": lambda x: torch.einsum("nhd,hkd->nkh", x.view(-1, 2, 2), _WEIGHT),
    "scores of heads": lambda x: torch.einsum("nhd,hd->nh", x.view(-1, 2, 2), _WEIGHT[0]),
}
_WEIGHT = torch.arange(8.0, dtype=torch.float64).view(2, 2, 2).sin()
WRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda y: y.reshape(-1),
    "contiguous": lambda y: y.contiguous(),
    "contiguous transpose": lambda y: y.transpose(0, -1).contiguous(),
}


def write_differences(counts: list[int]) -> list[str]:
    """Returns the cases in which a write to a view or a copy changes other rows than in torch."""
    layout = RowLayout.from_order(Group.current(), torch.arange(sum(counts)).flip(0), counts)
    plain = torch.arange(sum(counts) * 4.0, dtype=torch.float64).view(-1, 4).cos()
    texts = []
    for name, function in ORDERS.items():
        for writer, write in WRITTEN.items():
            if (name, writer) == ("middle of three", "flat"):
                continue  # refused: rows would be split
            expected, results = function(plain), function(distribute(plain, layout))
            write(expected).add_(1)
            write(results).add_(1)
            if not torch.allclose(results.full_tensor(), expected):
                texts.append(f"{name}, {writer}")
    return texts


@pytest.mark.parametrize("counts", [[7, 1, 1], [8, 1, 0], [1, 1, 3]])
def test_ranks_agree_on_views_and_copies(counts: list[int]) -> None:
    assert not any(run_ranks(write_differences, 3, counts))


# Functions of rows [n, 4] with several results.
SEVERAL: dict[str, Callable[[Tensor], Any]] = {
    "topk": lambda x: x.t().topk(2, 0),
    "sort": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).sort(0),
    "max": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).max(1),
    "kthvalue": lambda x: x.view(-1, 2, 2).permute(2, 0, 1).kthvalue(1, 0),
    "cummax": lambda x: x.t().cummax(0),
    "var_mean": lambda x: torch.var_mean(x.view(-1, 2, 2).permute(1, 2, 0), 0),
    "aminmax": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).aminmax(dim=0),
    "layer norm": lambda x: torch.ops.aten.native_layer_norm(
        x.view(-1, 2, 2).transpose(1, 2), (2,), None, None, 1e-5
    ),
    "frexp": lambda x: torch.frexp(x.t()),
    "split": lambda x: x.t().exp().split(2, 0),
    "columns": lambda x: x.view(-1, 2, 2).permute(1, 2, 0).exp().unbind(1),
    "softmax over rows": lambda x: [x.t().softmax(1), x.t().log_softmax(1)],
    "number": lambda x: [torch.copysign(x.t(), x.new_ones(())), x.t().floor_divide(x.new_ones(()))],
    "limited norms": lambda x: [x.t().renorm(2, 0, 1.0)],
    "written columns": lambda x: [x.t().index_copy(0, torch.tensor([1]), x.t()[:1])],
    "views of heads": lambda x: [
        torch.einsum("nhd,hdk->nhk", x.view(-1, 2, 2), _WEIGHT).transpose(0, 1).flatten(1),
        torch.einsum("nhd,hdk->nhk", x.view(-1, 2, 2), _WEIGHT).transpose(1, 2).unsqueeze(0),
    ],
}


def stride_differences(counts: list[int]) -> list[str]:
    """Returns results whose dimensions are in another order in memory than torch's."""
    layout = RowLayout.from_order(Group.current(), torch.arange(sum(counts)).flip(0), counts)
    plain = torch.arange(sum(counts) * 4.0, dtype=torch.float64).view(-1, 4).cos()
    texts = []
    for name, function in (*ORDERS.items(), *SEVERAL.items()):
        pairs = zip(
            *(tree_leaves(function(x)) for x in (distribute(plain, layout), plain)), strict=True
        )
        for number, (result, expected) in enumerate(pairs):
            if not hasattr(result, "row_layout"):
                continue
            if result.stride() != expected.stride():
                texts.append(f"{name}, {number}: {result.stride()}, right is {expected.stride()}")
            assert torch.allclose(result.full_tensor().double(), expected.double())
            result.transpose(0, -1).contiguous().add_(1)
            expected.transpose(0, -1).contiguous().add_(1)
            if not torch.allclose(result.full_tensor().double(), expected.double()):
                texts.append(f"{name}, {number}: a write reaches other elements")
    return texts


@pytest.mark.parametrize("counts", [[7, 1, 1], [8, 1, 0], [1, 1, 3], [0, 0, 5]])
def test_results_have_the_strides_of_torch(counts: list[int]) -> None:
    assert not any(texts := run_ranks(stride_differences, 3, counts)), texts


def fetch_bad_ids(bad: int) -> tuple[str, float]:
    x = make_rows(6, None)[1]
    ids = torch.arange(6)
    ids[4] = bad
    full = peergraph_pyg.full_graph(Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), x=ids))
    with pytest.raises(IndexError) as error:
        x[full.x]
    return str(error.value), float(x[full.x.clamp(0, 5)].sum())


@pytest.mark.parametrize("bad", [6, -7, 2**40])
def test_an_id_that_names_no_row_is_an_error_on_all_ranks(bad: int) -> None:
    first, second, third = run_ranks(fetch_bad_ids, 3, bad)
    assert first == second == third  # and the ranks go on together
    assert "row ids must be in -6..5" in first[0]
    assert str(bad) in first[0]
