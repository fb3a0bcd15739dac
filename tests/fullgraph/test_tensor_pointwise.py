"""Pointwise operations, in place or not, and broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data

import peergraph_pyg
from peergraph.fullgraph import distribute
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.memory import Group
from peergraph.testing import run_ranks
from tests.fullgraph.gpu_numbers import GPU_NUMBERS
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases


def _complex(i: Inputs) -> Tensor:
    return torch.complex(i.x, i.y * 2)


def in_place_chain(i: Inputs) -> Tensor:
    h = i.x * 2
    h += i.y
    h -= i.b
    h *= i.s
    h.relu_()
    h = h / 3
    h.add_(i.c).clamp_(max=2.0)
    return h * i.v.unsqueeze(1)


def masked_fill_in_place(i: Inputs) -> Tensor:
    h = i.x * 1
    h.masked_fill_(i.targets > 0, 0.5)
    h[i.y > 1] = 0
    return h


def column_assignment(i: Inputs) -> Tensor:
    h = i.x * 1
    h[:, 0] = i.y[:, 0]
    h[:, 2:4] = 1.5
    h[:, 4] *= 2
    return h


def in_place_on_view(i: Inputs) -> Tensor:
    h = i.x * 1
    h.view(-1, 2, 3)[:, 1].mul_(3)
    h[..., -1].copy_(i.v)
    return h


def views_of_what_is_written(i: Inputs) -> Tensor:
    """Elements that are written and read are others, or the same."""
    h = i.x.detach() * 1
    h[:, :2].add_(h[:, 2:4])
    h[:, ::2].mul_(h[:, 1::2])
    h[:, 1:].mul_(h[:, :1])
    return h.mul_(h)


def no_grad_update(i: Inputs) -> Tensor:
    with torch.no_grad():
        i.x.add_(i.y.detach())
        i.x.zero_().fill_(2).copy_(i.y)
    return i.x * i.y


def selected_rows(i: Inputs, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The product of rows in two orders: gradients come in another layout than the rows."""
    ids = torch.tensor([12, 0, 5, 5, 3, 7, 1, 9], device=i.w.device)
    other_ids = torch.tensor([1, 11, 2, 8, 8, 0, 12, 4], device=i.w.device)
    return i.x[ids] * function(i.y[other_ids])


def autocast(i: Inputs) -> list[Tensor]:
    with torch.autocast(i.w.device.type, dtype=torch.bfloat16):
        h = i.x.float() @ i.w.float()
        total = h.sum(0)
    assert h.dtype == torch.bfloat16
    return [h.double().detach(), total.dtype, F.relu(h).double().detach()]


UNARY = {
    name: lambda i, name=name: getattr(torch, name)(i.x)
    for name in (
        *("neg", "abs", "exp", "sin", "cos", "tanh", "sigmoid", "erf", "expm1", "square", "sign"),
        *("atan", "floor", "isnan", "logical_not", "relu", "sinc", "positive", "isfinite"),
    )
}
ACTIVATIONS = {
    name: lambda i, name=name: getattr(F, name)(i.x)
    for name in (
        *("elu", "leaky_relu", "gelu", "silu", "selu", "celu", "softplus", "hardtanh", "mish"),
        *("logsigmoid", "softsign", "tanhshrink", "hardswish", "hardsigmoid", "relu6"),
    )
}
CASES: dict[str, Case] = {
    **UNARY,
    **ACTIVATIONS,
    "selected rows": lambda i: selected_rows(i, torch.sigmoid),
    "selected rows, with a buffer": lambda i: selected_rows(i, F.logsigmoid),
    "log": lambda i: (i.x.abs() + 1).log() + torch.log1p(i.x**2) + (i.x**2 + 1).rsqrt(),
    "prelu": lambda i: F.prelu(i.x, i.b),
    "prelu single": lambda i: F.prelu(i.x, i.c.view(1)),
    "threshold": lambda i: F.threshold(i.x, 0.1, 20),
    "arithmetic": lambda i: (i.x + i.y) * 2 - i.x / (i.y**2 + 1) + torch.add(i.x, i.y, alpha=3),
    "reversed": lambda i: 1 - i.x + 2 / (i.x**2 + 1) + 2**i.y,
    "power": lambda i: (i.x**2 + 1) ** i.y + i.x.pow(3),
    "scalar tensor": lambda i: i.x * i.c + torch.tensor(2.0) * i.y,
    "bias": lambda i: i.x + i.b,
    "bias first": lambda i: i.b * i.x,
    "row of bias": lambda i: i.x + i.b.unsqueeze(0),
    "column": lambda i: i.x * i.s + i.s,
    "vector as column": lambda i: i.x * i.v.view(-1, 1) + i.v[:, None],
    "more dimensions": lambda i: i.h * i.b.view(2, 3) + i.s.unsqueeze(2),
    "plain in front": lambda i: (i.x.t() + i.c) * i.b.unsqueeze(1),
    "expanded plain": lambda i: i.x + i.b.expand(13, 6) + i.w.new_ones(1, 1),
    "where": lambda i: torch.where(i.x > i.y, i.x, i.y * 2) + torch.where(i.x > 0, i.x, 0.0),
    "where column": lambda i: torch.where(i.mask.unsqueeze(1), i.x, i.b),
    "clamp": lambda i: i.x.clamp(-0.5, 0.7) + i.y.clamp(min=0) + i.y.clip(max=i.x),
    "comparisons": lambda i: [i.x > i.y, i.x == i.x, i.labels != 3, i.x >= 0.0, i.mask & ~i.few],
    "logical": lambda i: [i.mask | i.few, i.mask ^ i.few, torch.logical_and(i.mask, i.few)],
    "minimum": lambda i: [torch.minimum(i.x, i.y), torch.maximum(i.x, i.b), torch.fmax(i.x, i.y)],
    "lerp": lambda i: torch.lerp(i.x, i.y, 0.3) + torch.addcmul(i.x, i.y, i.y, value=2),
    "integers": lambda i: [i.labels * 2 + 1, i.labels // 2, i.labels % 2, i.labels.float()],
    "casts": lambda i: [i.x.float().double(), i.x.int(), i.mask.long(), i.labels.double() * i.v],
    "to": lambda i: [i.x.to(torch.float32), i.x.to(i.y), i.labels.to(i.x.dtype), i.x.type_as(i.x)],
    "masked_fill": lambda i: (
        i.x.masked_fill(i.targets > 0, -1) + i.x.masked_fill(i.mask[:, None], 2)
    ),
    "in place": in_place_chain,
    "masked_fill in place": masked_fill_in_place,
    "column assignment": column_assignment,
    "in place on views": in_place_on_view,
    "views of what is written": views_of_what_is_written,
    "no_grad": no_grad_update,
    "autocast": autocast,
    "nan_to_num": lambda i: torch.nan_to_num(i.x.detach() / (i.x > 0), posinf=2.0),
    "out": lambda i: torch.add(i.x.detach(), i.y.detach(), out=torch.empty_like(i.x)),
    "atan2": lambda i: torch.atan2(i.x, i.y) + torch.hypot(i.x, i.y),
    "detach": lambda i: i.x.detach() * i.y,
    "data": lambda i: i.x.data * i.y,
    "clone": lambda i: i.x.clone() + i.x.contiguous(),
    "isin": lambda i: torch.isin(i.labels, torch.tensor([1, 3]).to(i.w.device)),
    "glu": lambda i: F.glu(i.x, dim=-1),
    "conjugates": lambda i: (lambda z: (z * z.conj() * (2 - 1j)).real + z.conj().imag)(_complex(i)),
    "sums of conjugates": lambda i: (_complex(i) * _complex(i).exp().conj()).sum(0).abs(),
    "product with a conjugate": lambda i: (_complex(i).mH @ _complex(i)).abs(),
    "rows of a conjugate": lambda i: torch.view_as_real(_complex(i).conj().resolve_conj()).flatten(
        1
    ),
    "complex chain": lambda i: (
        torch.sigmoid(i.x) * torch.tanh(i.y) + F.gelu(i.x, approximate="tanh")
    ),
}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_pointwise(world_size: int) -> None:
    check_cases(__name__, world_size)


def _write_what_is_read() -> str:
    rows = distribute(torch.ones(2, 6), RowLayout.contiguous(Group.current(device="cpu"), 2))
    with pytest.raises(NotImplementedError, match="another view of the memory") as error:
        rows.mul_(rows[:, 0][:, None])
    return str(error.value)


def test_all_ranks_refuse_to_read_what_is_written() -> None:
    """torch refuses it by sizes: of one row of a rank, and not of two."""
    assert len(set(run_ranks(_write_what_is_read, 3))) == 1


def _write_conjugate(offload: bool) -> None:
    options = {"offload": True, "num_chunks": 2} if offload else {}
    edges = torch.zeros(2, 1, dtype=torch.int64)
    graph = peergraph_pyg.full_graph(Data(edge_index=edges, x=torch.ones(5, 2)), **options)
    z = torch.complex(graph.x, graph.x)
    first, second = z.conj(), z.conj()
    for written in (z, first):
        with pytest.raises(NotImplementedError, match="conj_physical"):
            written.mul_(2)
    del first, second
    z = torch.complex(graph.x, graph.x * 0 + 2)
    copy = torch.conj_physical(z)
    z.mul_(3)
    assert torch.equal(copy.full_tensor(), torch.full((5, 2), 1 - 2j))
    assert torch.equal(z.full_tensor(), torch.full((5, 2), 3 + 6j))
    with pytest.raises(NotImplementedError, match="rows of complex numbers"):
        z.norm()


@pytest.mark.parametrize("offload", [False, True])
def test_a_conjugate_is_not_written_unnoticed(offload: bool) -> None:
    run_ranks(_write_conjugate, 2, offload)


@pytest.mark.parametrize("world_size", GPU_NUMBERS)
def test_pointwise_on_gpus(world_size: int) -> None:
    check_cases(__name__, world_size, "cuda")
