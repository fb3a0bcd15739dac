"""Losses of partitioned rows: all reductions, ignored rows, ranks without rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fullgraph.gpu_numbers import each_place
from tests.fullgraph.partitioned_cases import Case, Inputs, check_cases

REDUCTIONS = ("mean", "sum", "none")


def classes(**options: object) -> Case:
    def case(i: Inputs) -> list[Tensor]:
        results = []
        for reduction in REDUCTIONS:
            for rows in (slice(None), i.mask, i.few, i.ids):
                arguments = {"reduction": reduction, **options}
                if options.get("weight") == "b":
                    arguments["weight"] = i.b.detach().abs()
                results.append(F.cross_entropy(i.x[rows], i.labels[rows], **arguments))
        return results

    return case


def likelihood(i: Inputs) -> list[Tensor]:
    p = F.log_softmax(i.x, dim=-1)
    return [
        *(F.nll_loss(p, i.labels, reduction=reduction) for reduction in REDUCTIONS),
        F.nll_loss(p[i.few], i.labels[i.few], weight=i.b.detach() ** 2, ignore_index=1),
        nn.NLLLoss()(p[i.mask], i.labels[i.mask]),
    ]


def elementwise(name: str) -> Case:
    def case(i: Inputs) -> list[Tensor]:
        loss = getattr(F, name)
        return [
            *(loss(i.x, i.y, reduction=reduction) for reduction in REDUCTIONS),
            *(loss(i.x[i.few], i.y[i.few]), loss(i.v, i.s.squeeze(1)), loss(i.x, i.y.detach())),
            *(loss(i.h.transpose(0, 1), i.h.transpose(0, 1) * 2), loss(i.x[i.ids], i.y[i.ids])),
        ]

    return case


def binary(i: Inputs) -> list[Tensor]:
    p = i.x.sigmoid()
    return [
        *(F.binary_cross_entropy(p, i.targets, reduction=r) for r in REDUCTIONS),
        *(F.binary_cross_entropy_with_logits(i.x, i.targets, reduction=r) for r in REDUCTIONS),
        F.binary_cross_entropy_with_logits(
            i.x[i.few], i.targets[i.few], pos_weight=i.b.detach().abs()
        ),
        F.binary_cross_entropy_with_logits(i.x, i.targets, weight=i.b.detach() ** 2),
        F.binary_cross_entropy(p, i.targets, weight=i.s.detach().abs()),
        nn.BCEWithLogitsLoss()(i.x[i.mask], i.targets[i.mask]),
    ]


def divergence(i: Inputs) -> list[Tensor]:
    p, q = i.x.log_softmax(1), i.y.softmax(1)
    return [
        *(F.kl_div(p, q, reduction=r) for r in (*REDUCTIONS, "batchmean")),
        F.kl_div(p[i.few], i.y.log_softmax(1)[i.few], log_target=True, reduction="batchmean"),
    ]


def ignored(i: Inputs) -> list[Tensor]:
    labels = torch.where(i.few, i.labels, -1)
    return [
        F.cross_entropy(i.x, labels, ignore_index=-1),
        F.cross_entropy(i.x, labels, ignore_index=-1, reduction="none"),
        nn.CrossEntropyLoss(ignore_index=-1, label_smoothing=0.2)(i.x, labels),
    ]


def nothing(i: Inputs) -> list[Tensor]:
    nobody = i.few & (i.labels < 0)
    loss = F.cross_entropy(i.x[nobody], i.labels[nobody], reduction="sum")
    return [loss, torch.isnan(F.mse_loss(i.x[nobody], i.y[nobody]).detach())]


def smoothed(i: Inputs) -> Tensor:
    return F.cross_entropy(
        i.x[i.mask], i.labels[i.mask], i.b.detach().abs(), ignore_index=2, label_smoothing=0.3
    )


def of_classes_at_places(i: Inputs) -> list[Tensor]:
    """Soft labels and labels of several places of a row: [rows, classes, places]."""
    shares = i.h.detach().softmax(1)
    labels = (i.labels % 2)[:, None].expand(13, 3) * torch.ones_like(i.h[:, 0]).long().detach()
    return [
        *(F.cross_entropy(i.h, shares, reduction=r) for r in REDUCTIONS),
        *(F.cross_entropy(i.h, labels, reduction=r) for r in REDUCTIONS),
    ]


def labelled_elements(i: Inputs) -> Tensor:
    mask = i.targets > 0
    return F.mse_loss(i.x[mask], i.y[mask]) + (i.x[mask] * i.y[mask]).sum()


def of_equal_rows(i: Inputs) -> list[Tensor]:
    """Of plain rows that are all one vector, whose gradient is a sum over all rows."""
    rows = i.b.expand(13, 6)
    return [
        *(F.mse_loss(i.x, rows), F.l1_loss(rows, i.x, reduction="sum")),
        F.kl_div(i.b.log_softmax(0).expand(13, 6), i.x.detach().softmax(1), reduction="batchmean"),
        i.w.new_zeros(6, 6).index_add(0, i.labels, rows),
        i.w.new_zeros(6, 6).scatter_add(0, i.labels.unsqueeze(1).expand(13, 6), rows),
    ]


def of_one_row(i: Inputs) -> list[Tensor]:
    """Rows that are one row, with a plain tensor of one row: its gradient is plain."""
    one, row = i.x[3:4], i.b.view(1, 6)
    by_mask, by_ids = i.x[i.few][:1], i.x[i.ids[:1]]
    changed = one.clone()
    changed += row
    return [
        *(F.mse_loss(row, one), F.smooth_l1_loss(by_mask, row), F.cosine_similarity(by_ids, row)),
        *(one * row, by_mask + row, torch.cat([by_ids, row], 1), torch.where(one > 0, one, row)),
        *(changed, F.pairwise_distance(one, row), i.v[4:5] * i.c.view(1)),
        one + F.embedding(torch.zeros(1, dtype=torch.int64, device=i.b.device), row),
    ]


CASES: dict[str, Case] = {
    "of equal rows": of_equal_rows,
    "of one row": of_one_row,
    "cross_entropy": classes(),
    "with weights": classes(weight="b"),
    "with an ignored class": classes(ignore_index=3),
    "with smoothing": classes(label_smoothing=0.1),
    "with all": smoothed,
    "module": lambda i: nn.CrossEntropyLoss(weight=i.b.detach() ** 2)(i.x, i.labels),
    "ignored rows": ignored,
    "no rows at all": nothing,
    "class probabilities": lambda i: [
        F.cross_entropy(i.x, i.y.softmax(1), reduction=r) for r in REDUCTIONS
    ],
    "class probabilities of few rows": lambda i: F.cross_entropy(
        i.x[i.few], i.y.softmax(1)[i.few], i.b.detach().abs(), label_smoothing=0.1
    ),
    "nll_loss": likelihood,
    **{name: elementwise(name) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
    "soft_margin_loss": lambda i: F.soft_margin_loss(i.x, i.targets.detach() * 2 - 1),
    "binary": binary,
    "kl_div": divergence,
    "margin ranking": lambda i: F.margin_ranking_loss(i.v, i.x[:, 0], i.x[:, 1].sign(), 0.1),
    "by hand": lambda i: -(F.logsigmoid(i.v).mean() + F.logsigmoid(-i.x).mean()),
    "picked": lambda i: -i.x.log_softmax(1)[torch.arange(13), i.labels].mean(),
    "gathered": lambda i: -i.x.log_softmax(1).gather(1, i.labels.unsqueeze(1)).mean(),
    "classes at places": of_classes_at_places,
    "labelled elements": labelled_elements,
    "with penalty": lambda i: F.cross_entropy(i.x @ i.w, i.labels % 4) + i.w.pow(2).sum() * 0.1,
}


@each_place(1, 2, 3)
def test_losses(world_size: int, device_type: str) -> None:
    check_cases(__name__, world_size, device_type)
