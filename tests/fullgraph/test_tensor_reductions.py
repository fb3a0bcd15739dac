"""Reductions along columns and over rows, and normalisation of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import NODES, Case, Inputs, check_cases


def values_of(i: Inputs) -> list[object]:
    prediction = i.x.argmax(dim=-1)
    return [
        int((prediction == i.labels).sum()),
        (prediction[i.mask] == i.labels[i.mask]).sum().item() / int(i.mask.sum()),
        float(i.x.mean()),
        bool(i.mask.any()),
        (prediction == i.labels).float().mean().item(),
        torch.equal(i.x, i.x.clone()),
        torch.equal(i.x, i.y),
        torch.allclose(i.x, i.x + 1e-12),
        int(i.labels.max()) + 1,
        i.mask.nonzero().view(-1),
        torch.where(i.mask)[0],
        i.labels.unique().numel(),
        i.labels.bincount(),
    ]


def counts(i: Inputs) -> list[Tensor]:
    """Counts with weights, of which the labels, the weights or both are of rows."""
    v, ones = i.v.detach(), torch.ones(NODES, dtype=torch.int64, device=i.v.device)
    return [
        *(i.labels.bincount(v), torch.bincount(ones, v), torch.bincount(ones, weights=v)),
        i.labels.bincount(ones.double(), minlength=9),
    ]


def extrema_of_nan(i: Inputs) -> list[Tensor]:
    """A NaN is every extremum of its column, whichever rank has it."""
    results = []
    for row in (0, 5, NODES - 1):
        for x in (i.v.detach().clone(), i.x.detach().clone()):
            x[row] = torch.nan
            results += [x.amax(0), x.amin(0), x.argmax(0), *x.max(0), *x.min(0), x.float().amax(0)]
    return [result.nan_to_num(77) for result in results]


def with_ties(i: Inputs) -> Tensor:
    """Values of rows of which some are equal, and some are NaN."""
    values = i.v.detach().round()
    return torch.where(i.mask & (values > 0), torch.nan, values)


def among_rows(i: Inputs) -> list[Tensor]:
    v, bounds = i.v.detach(), torch.linspace(-1, 1, 5, dtype=torch.float64, device=i.v.device)
    x, h = i.x.detach(), i.h.detach()
    return [
        *(torch.bucketize(x, bounds), torch.bucketize(v, bounds, right=True)),
        *(torch.searchsorted(bounds, v), torch.searchsorted(bounds, x, side="right")),
        torch.bucketize(i.labels, torch.arange(0, 6, 2, device=v.device), out_int32=True),
        torch.searchsorted(h.sort(-1).values, h[:, :, :2].contiguous()),
        *(torch.histc(x, 5, -1, 1), torch.histc(v, 4), torch.histc(torch.zeros_like(v), 3)),
        *torch.unique(i.labels, return_counts=True),
        *torch.unique(x.round(), return_inverse=True, return_counts=True),
        *(i.mask.unique(return_inverse=True), with_ties(i).unique(return_counts=True))[0],
        with_ties(i).unique(return_counts=True)[1],
        *((x > 0.5).nonzero(), torch.argwhere(i.h > 0), *torch.where(x < -1)),
        *(x[torch.where(x > 1)[0]], i.v.topk(4).values * i.g[:4], i.v.topk(3).indices),
        *(torch.topk(i.v, 2, largest=False).values, i.v.topk(13).indices, i.v.topk(0).values),
        *(i.x[:, 2].topk(1)[0][-1], i.x[i.v.topk(2).indices], *i.x.t().topk(3)),
        *(*i.x.topk(2, 0, largest=False), *i.h.topk(2, dim=0), i.x[:, 0].float().topk(1).values),
    ]


def by_dim(name: str, *dims: object) -> Case:
    def case(i: Inputs) -> list[Tensor]:
        results = []
        for dim in dims:
            for keepdim in (False, True):
                for x in (i.x, i.h, i.x.t()):
                    if dim is None or max(dim if isinstance(dim, tuple) else (dim,)) < x.dim():
                        arguments = {} if dim is None else {"dim": dim, "keepdim": keepdim}
                        result = getattr(torch, name)(x, **arguments)
                        results += [result] if isinstance(result, Tensor) else list(result)
        return results

    return case


CASES: dict[str, Case] = {
    "values": values_of,
    "among rows": among_rows,
    "counts": counts,
    "extrema of NaN": extrema_of_nan,
    "logsumexp of integers": lambda i: [
        i.targets.long().logsumexp(0),
        (i.labels - 2**62).logsumexp(0),
    ],
    "filled": lambda i: (i.x.index_fill(0, i.ids[[0, 0, 1]], i.c) * i.y).sum(),
    "sum": by_dim("sum", None, 0, 1, -1, (0, 1), (1, 2), (0, 2)),
    "mean": by_dim("mean", None, 0, 1, -1, (0, 1), (1, 2)),
    "amax": by_dim("amax", 0, 1, -1, (0, 1)),
    "amin": by_dim("amin", 0, 1, -1, (0, 1)),
    "max": by_dim("max", None, 0, 1, -1),
    "min": by_dim("min", None, 0, 1, -1),
    "argmax": by_dim("argmax", None, 0, 1, -1),
    "argmin": by_dim("argmin", None, 0, 1, -1),
    "var": by_dim("var", 0, 1, -1, (0, 1)),
    "std": by_dim("std", 0, 1, -1, (0, 1)),
    "var_mean": by_dim("var_mean", 0, 1),
    "full statistics": lambda i: [i.x.var(), i.x.std(), i.x.std(unbiased=False), i.h.norm()],
    "biased": lambda i: [i.x.var(0, unbiased=False), i.x.std(1, unbiased=False), i.x.std(0, False)],
    "logsumexp": by_dim("logsumexp", 0, 1, (0, 1)),
    "any": lambda i: [i.mask.any(), (i.x > 1).any(0), (i.x > 1).any(1), (i.x > 9).any()],
    "all": lambda i: [i.mask.all(), (i.x > -1).all(0), (i.x > -1).all(1), (i.x > -9).all()],
    "count_nonzero": lambda i: [i.labels.count_nonzero(), torch.count_nonzero(i.targets, dim=0)],
    "prod": lambda i: [i.x.detach().prod(), i.x.detach().prod(0), i.x.prod(1)],
    "norms": lambda i: [
        *(
            i.x.norm(p=p, dim=d, keepdim=k)
            for p in (1, 2, 3)
            for d in (0, 1)
            for k in (True, False)
        ),
        *(i.x.norm(), i.x.norm(p=1), torch.norm(i.x, dim=1), i.x.norm(p=float("inf"), dim=0)),
        *(torch.linalg.norm(i.x, dim=0), torch.linalg.vector_norm(i.x), i.x.norm(dim=-1, p=2)),
    ],
    "normalize": lambda i: [
        F.normalize(i.x),
        F.normalize(i.x, dim=0),
        F.normalize(i.x, p=1, dim=-1),
    ],
    "softmax": lambda i: [i.x.softmax(1), i.x.softmax(0), F.softmax(i.h, dim=0), i.v.softmax(0)],
    "log_softmax": lambda i: [F.log_softmax(i.x, dim=1), i.x.log_softmax(0), i.h.log_softmax(-1)],
    "softmin": lambda i: F.softmin(i.x, dim=1),
    "attention pooling": lambda i: (i.v.softmax(0).unsqueeze(1) * i.x).sum(0),
    "cumsum": lambda i: [i.x.cumsum(1), i.x.cumprod(1), i.h.cumsum(-1), i.x.logcumsumexp(1)],
    "sort": lambda i: [*i.x.sort(dim=1), *i.x.sort(1, descending=True), i.x.argsort(dim=-1)],
    "topk": lambda i: [*i.x.topk(2, dim=1), *i.x.kthvalue(2, dim=1), *i.x.median(dim=1)],
    "layer_norm": lambda i: [
        *(F.layer_norm(i.x, (6,)), F.layer_norm(i.x, (6,), i.b, i.g), F.layer_norm(i.h, (2, 3))),
    ],
    "group_norm": lambda i: [F.group_norm(i.x, 2), F.group_norm(i.x, 3, i.b, i.g)],
    "rms_norm": lambda i: [F.rms_norm(i.x, (6,)), F.rms_norm(i.x, (6,), i.b)],
    "local_response": lambda i: i.x / i.x.pow(2).mean(-1, keepdim=True).sqrt(),
    "graph norm by hand": lambda i: (
        (i.x - i.x.mean(0)) / (i.x.var(0, unbiased=False) + 1e-5).sqrt()
    ),
    "pair norm by hand": lambda i: (i.x - i.x.mean(0)) / (i.x.pow(2).sum(-1).mean() + 1e-5).sqrt(),
    "dtype": lambda i: [
        i.mask.sum(),
        i.labels.sum(0),
        i.mask.float().mean(),
        i.x.sum(dtype=torch.float32),
    ],
    "nansum": lambda i: [i.x.nansum(), i.x.detach().nansum(0)],
    "sum of one row each": lambda i: [i.x.sum(dim=(1,)), i.h.sum((0, 1)), i.h.mean((0, 2))],
    "one_hot": lambda i: [F.one_hot(i.labels, 6), F.one_hot(i.labels)],
    "second order sum": lambda i: torch.autograd.grad(
        (i.x.sum(0) ** 3).sum() + (i.x.mean(0) ** 3).sum(), i.x, create_graph=True
    )[0],
    "second order max": lambda i: torch.autograd.grad(
        (i.x.max(0)[0] ** 3).sum() + (i.x.amax(0) ** 2).sum(), i.x, create_graph=True
    )[0],
}


@each_place(1, 2, 3)
def test_reductions(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
