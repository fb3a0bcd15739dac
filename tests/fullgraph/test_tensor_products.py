"""Products of matrices, and linear layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases


def pairs_of_lists(i: Inputs) -> list[Tensor]:
    """Products of rows that two lists of ids name, as decoders of links have them."""
    heads, tails = i.x[i.ids], i.y[i.ids.flip(0) - 1]
    weight = i.w.t().reshape(4, 6, 1).repeat(1, 1, 6)
    return [
        torch.bmm(heads.unsqueeze(1), tails.unsqueeze(2)).flatten(),
        *(torch.einsum("ij,ij->i", heads, tails), torch.einsum("bi,bj->bij", heads, tails)),
        *(heads.t() @ tails, heads[:, 0].dot(tails[:, 1]), F.bilinear(heads, tails, weight)),
        torch.addmm(i.w @ i.w.t(), heads.t(), tails),
    ]


def samples_of_rows(i: Inputs) -> list[Tensor]:
    """Layers of a batch with a sample for each row, as of a time series of each node."""
    h, kernel = i.h, i.heads.view(4, 2, 3)
    attention = F.scaled_dot_product_attention(h, h * 2, h.sin())
    results = [attention, F.conv1d(h, kernel, i.b[:4], padding=1), F.max_pool1d(h, 2)]
    results += [
        F.avg_pool1d(h, 3),
        F.adaptive_max_pool1d(h, 1),
        *F.max_pool1d(h, 2, None, 0, 1, False, True),
    ]
    return [*results, F.conv2d(h.unsqueeze(1), kernel.unsqueeze(1)[:, :, :1, :2])]


CASES: dict[str, Case] = {
    "pairs of lists": pairs_of_lists,
    "samples of rows": samples_of_rows,
    "mm": lambda i: [i.x @ i.w, torch.mm(i.x, i.w), i.x.matmul(i.w)],
    "linear": lambda i: [F.linear(i.x, i.w.t()), F.linear(i.x, i.w.t(), i.b[:4])],
    "linear of three dimensions": lambda i: F.linear(i.h, i.heads[0].t(), i.b[:4]),
    "linear without bias of three dimensions": lambda i: F.linear(i.h, i.heads[0].t()),
    "addmm": lambda i: torch.addmm(i.b[:4], i.x, i.w, beta=0.5, alpha=2),
    "addmm of rows": lambda i: torch.addmm(i.y[:, :4], i.x, i.w),
    "contraction": lambda i: [i.x.t() @ i.y, i.v @ i.x, i.x.t() @ i.v, i.v @ i.v, i.v.dot(i.v)],
    "addmm of contraction": lambda i: torch.addmm(i.b, i.x.t(), i.y, alpha=2),
    "plain first": lambda i: [i.w.t() @ i.x.t(), i.b @ i.x.t()],
    "mv": lambda i: [i.x @ i.b, torch.mv(i.x, i.b), i.h @ i.b[:3]],
    "addmv": lambda i: torch.addmv(i.v, i.x, i.b),
    "outer of columns": lambda i: i.x.unsqueeze(2) @ i.y.unsqueeze(1),
    "bmm": lambda i: torch.bmm(i.h, i.h.transpose(1, 2)),
    "bmm with heads": lambda i: torch.bmm(i.h.transpose(0, 1), i.heads).transpose(0, 1),
    "batch contraction": lambda i: torch.bmm(i.h.permute(1, 2, 0), i.h.permute(1, 0, 2)),
    "baddbmm": lambda i: torch.baddbmm(i.h @ i.heads[0], i.h, i.heads[0].expand(13, 3, 4), beta=2),
    "matmul broadcasts": lambda i: [i.h @ i.heads[0], i.h.unsqueeze(2) @ i.heads],
    "einsum": lambda i: torch.einsum("nhd,hdk->nhk", i.h, i.heads),
    "einsum of rows": lambda i: torch.einsum("nhd,nhd->nh", i.h, i.h * 2),
    "einsum contraction": lambda i: torch.einsum("nhd,nhk->hdk", i.h, i.h),
    "einsum matrix": lambda i: torch.einsum("nf,fk->nk", i.x, i.w),
    "linear attention": lambda i: torch.einsum(
        "nhm,hmd->nhd", i.h, torch.einsum("lhm,lhd->hmd", i.h, i.h)
    ),
    "inner": lambda i: (i.x * i.y).sum(-1),
    "bilinear": lambda i: F.bilinear(i.x, i.y, i.w.t().reshape(4, 6, 1).repeat(1, 1, 6), i.b[:4]),
    "gram": lambda i: torch.linalg.vector_norm(i.x.t() @ i.x),
    "cosine": lambda i: F.cosine_similarity(i.x, i.y, dim=-1),
    "pairwise distance": lambda i: F.pairwise_distance(i.x, i.y),
    "chain": lambda i: (i.x @ i.w).relu() @ i.w.t(),
    "second order": lambda i: torch.autograd.grad(
        ((i.x @ i.w).tanh()).sum(), i.x, create_graph=True
    )[0],
    "second order of weights": lambda i: torch.autograd.grad(
        ((i.x @ i.w).tanh()).mean(0).sum(), i.w, create_graph=True
    )[0],
}


@each_place(1, 2, 3)
def test_products(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
