"""Rows by masks, ids and ranges; rows of other ranks; scattering; assignment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases


def assignments(i: Inputs) -> list[Tensor]:
    h, k, m, q = i.x * 1, i.x * 1, i.x * 1, i.x * 1
    h[i.mask] = i.y[i.mask]
    h[i.few] = 3.0
    k[torch.tensor([1, 5])] = i.y[torch.tensor([1, 5])] * 2
    k[7] = i.b
    k[9:] = 0
    m[i.mask] += i.b
    m[2:5] *= 2
    m[i.ids[:2]] = i.x[i.ids[:2]] + 1
    q[i.mask, 0] = 5
    q[3, 1] = i.c
    q[:] = q * 2
    return [h, k, m, q]


def plain_masks(i: Inputs) -> list[Tensor]:
    mask = torch.arange(13) % 3 == 0
    chosen = i.x[mask]
    return [chosen * i.y[mask], chosen[1:3], i.x[mask][:, 1:], i.x[mask, 0], i.x[~mask].sum(0)]


def partitioned_ids(i: Inputs) -> list[Tensor]:
    source = (i.labels * 5 + 2) % 13
    target = i.labels + 3
    pair = torch.stack([source, target], dim=1)
    return [
        i.x[source] * i.y[target],
        (i.x[source] * i.x[target]).sum(-1),
        i.x.index_select(0, source),
        i.v[source],
        i.h[target],
        i.x[pair],
        i.x[source[i.mask]],
        i.labels[source],
    ]


def scatters(i: Inputs) -> list[Tensor]:
    groups = i.labels % 3
    column = groups.unsqueeze(1).expand(13, 6)
    ids = (i.labels * 5 + 2) % 13
    zeros = i.x.new_zeros(3, 6)
    return [
        i.x.new_zeros(3, 6).scatter_add_(0, column, i.x),
        i.w.new_zeros(3).index_add(0, groups, i.v),
        zeros.index_add(0, groups, i.x, alpha=2.0),
        zeros.scatter_reduce(0, column, i.x, "mean", include_self=False),
        zeros.scatter_reduce(0, column, i.x, "amax", include_self=False),
        zeros.scatter_reduce(0, column, i.x, "amin", include_self=True),
        zeros.scatter_reduce(0, column, i.x, "sum"),
        torch.zeros_like(i.x).index_add(0, ids, i.y),
        torch.zeros_like(i.x).scatter_add_(0, ids.unsqueeze(1).expand_as(i.y), i.y),
        i.w.new_zeros(6, 4)[i.labels] + i.w[i.labels],
        i.x.gather(0, ids.unsqueeze(1).expand(-1, 6)),
        i.heads.view(6, 4).gather(0, i.labels.unsqueeze(1).expand(-1, 4)),
        torch.zeros_like(i.x).scatter_add(1, i.labels.unsqueeze(1), i.s),
        torch.zeros_like(i.x).scatter(1, i.labels.unsqueeze(1), 1.0),
        i.x.scatter_reduce(1, i.labels.unsqueeze(1), i.s, "sum"),
    ]


def link_prediction(i: Inputs) -> list[Tensor]:
    edges = torch.tensor([[0, 4, 4, 12, 7], [3, 3, 12, 0, 7]])
    z = (i.x @ i.w).relu()
    score = (z[edges[0]] * z[edges[1]]).sum(dim=-1)
    label = i.w.new_tensor([1.0, 0, 1, 1, 0])
    both = torch.cat([score, (z[edges[1]] * z[edges[0]]).sum(-1)])
    loss = F.binary_cross_entropy_with_logits(score, label)
    labels = torch.cat([i.w.new_ones(5), i.w.new_zeros(5)]).float()
    accuracy = ((both > 0).float() == labels).float().mean()
    pairs = torch.cat([z[edges[0]], z[edges[1]]], dim=1)
    return [loss, both, pairs, accuracy, F.mse_loss(both, labels.double())]


def selections_match(i: Inputs) -> list[Tensor]:
    rows = i.mask.nonzero().view(-1)
    valid = i.mask & (i.labels > 1)
    return [
        i.x[rows] * i.y[rows],
        i.x[valid] + i.y[i.mask & (i.labels > 1)],
        i.x[i.mask][i.few[i.mask]],
    ]


CASES: dict[str, Case] = {
    "mask": lambda i: [i.x[i.mask], i.x[i.few], i.labels[i.mask], i.h[i.mask], i.mask[i.few]],
    "mask and columns": lambda i: [
        i.x[i.mask, 0],
        i.x[i.mask, 1:3],
        i.h[i.mask, :, 1],
        i.x[i.mask, None],
    ],
    "plain mask": plain_masks,
    "comparison": lambda i: [i.x[i.labels == 2], i.x[i.v > 0].mean(0), i.x[~i.mask]],
    "nobody": lambda i: [i.x[i.labels > 9], i.x[i.labels > 9].sum(0)],
    "everybody": lambda i: i.x[i.labels >= 0] * 2,
    "of a transpose": lambda i: [i.x.t()[:, i.mask], i.h.transpose(0, 1)[:, i.ids], i.x.t()[0]],
    "ids": lambda i: [i.x[i.ids], i.labels[i.ids], i.x[i.ids][:, 0], i.h[i.ids], i.x[i.ids, 1]],
    "lists": lambda i: [i.x[[0, 5]], i.x[[0, 5], :], i.x[range(3)]],
    "ids of a selection": lambda i: i.x[i.mask][torch.tensor([0, 2, 2])],
    "index_select": lambda i: [
        i.x.index_select(0, i.ids % 13),
        torch.index_select(i.v, 0, i.ids % 13),
    ],
    "ranges": lambda i: [i.x[:4], i.x[4:], i.x[-3:], i.x[::2], i.x[2:9:3], i.x[5:5], i.labels[:7]],
    "one row": lambda i: [
        i.x[0],
        i.x[-1],
        i.x[5, 2],
        i.v[3],
        i.h[2, 1],
        i.x[4][1:],
        int(i.labels[3]),
    ],
    "assignment": assignments,
    "partitioned ids": partitioned_ids,
    "scatter": scatters,
    "embedding": lambda i: [F.embedding(i.labels, i.w), F.embedding(i.labels, i.w, padding_idx=2)],
    "link prediction": link_prediction,
    "rows after rows": lambda i: [
        torch.cat([i.x, i.y]) * 2,
        torch.cat([i.x[i.mask], i.y[i.few], i.x]),
        torch.cat([i.x.t(), i.y.t()], dim=1),
    ],
    "same rows": selections_match,
    "permutation": lambda i: i.x[torch.arange(13).flip(0)] - i.y[torch.arange(13).flip(0)],
    "mask after a permutation": lambda i: [
        i.x[torch.arange(13).flip(0)][i.mask] * i.y[i.mask],
        i.labels[torch.arange(13) * 5 % 13][i.mask],
        i.mask[torch.arange(13).flip(0)],
    ],
    "number and ids": lambda i: torch.stack([i.w, i.w * 2])[1, i.labels % 6],
    "second order": lambda i: torch.autograd.grad(
        (i.x[i.mask].tanh().sum() + i.x[i.ids].tanh().sum()), i.x, create_graph=True
    )[0],
    "second order of partitioned ids": lambda i: torch.autograd.grad(
        i.x[i.labels].tanh().sum(), i.x, create_graph=True
    )[0],
}


@each_place(1, 2, 3)
def test_selection(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
