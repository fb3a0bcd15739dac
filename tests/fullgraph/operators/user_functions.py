"""Assignments, selections and functions of PyG, in the form of operators of torch's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg_nn
import torch_geometric.utils as pyg
from torch import Tensor


@dataclass
class UserFunction:
    """A function of tensors, described as `OpInfo` of torch describes its own."""

    name: str
    op: Callable[..., Any]
    samples: list[tuple[Any, ...]]
    variant_test_name: str = ""
    inplace_variant: None = None
    method_variant: None = None
    aten_name: str = ""
    supports_out: bool = False
    supports_autograd: bool = True

    def supported_dtypes(self, _: str) -> set[torch.dtype]:
        """The dtypes of inputs."""
        return {torch.float64}

    def sample_inputs_func(self, _: Any, device: torch.device, *__: Any) -> Iterator[Any]:
        """Yields the arguments of calls."""
        for first, *args in self.samples:
            arguments = [part.to(device) if isinstance(part, Tensor) else part for part in args]
            yield SimpleNamespace(input=first.to(device), args=tuple(arguments), kwargs={})


def _values(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def _assign(x: Tensor, value: Tensor, *index: Tensor) -> Tensor:
    x = x.clone()
    x[index] = value
    return x


def _assign_columns(x: Tensor, value: Tensor, index: Tensor) -> Tensor:
    x = x.clone()
    x[:, index] = value
    return x


def _add_at(x: Tensor, value: Tensor, *index: Tensor) -> Tensor:
    x = x.clone()
    x[index] += value
    return x


def _set_classes(x: Tensor, labels: Tensor) -> Tensor:
    return x.clone().scatter_(1, labels[:, None], 1)


def _add_classes(x: Tensor, labels: Tensor, values: Tensor) -> Tensor:
    return x.scatter_add(1, labels[:, None].expand_as(values), values)


def _weighted_loss(x: Tensor, labels: Tensor, weight: Tensor, row_weight: Tensor) -> Tensor:
    return (F.cross_entropy(x, labels, weight, reduction="none") * row_weight).mean()


_MASK = torch.tensor([True, False, True, True, False])
_IDS, _LABELS = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([1, 0, 2, 2, 0])
_SOME, _GROUPS = torch.tensor([4, 0]), torch.tensor([0, 0, 1, 1, 3])
_X, _SQUARE, _Y = _values(5, 3), _values(5, 5), _values(5)
_MASK_2 = _X > 0
_DENSE_LABELS = _values(5, 3).softmax(1)

_CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "assignment": (
        _assign,
        [
            *((_X, _values(3, 3), _MASK), (_X, _values(3), _MASK), (_X, _values(), _MASK)),
            *((_X, _values(5, 3), _IDS), (_X, _values(3), _IDS), (_X, _values(1, 3), _IDS)),
            *((_X, _values(2, 3), _SOME), (_X, _values(5), _IDS, _LABELS)),
            *((_X, _values(), _IDS, _LABELS), (_X, _values(2), _SOME, _SOME % 3)),
            *((_X, _values(int(_MASK_2.sum())), _MASK_2), (_X, _values(), _MASK_2)),
            *((_SQUARE, _values(5), _IDS), (_SQUARE, _values(5, 5), _IDS)),
            *((_Y, _values(5), _IDS), (_Y, _values(), _MASK), (_LABELS, _LABELS[:3], _MASK)),
        ],
    ),
    "assignment of columns": (
        _assign_columns,
        [(_X, _values(5, 2), _SOME % 3), (_SQUARE, _Y, _IDS), (_SQUARE, _SQUARE, _IDS)],
    ),
    "addition at ids": (
        _add_at,
        [(_X, _values(5, 3), _IDS), (_X, _values(3), _MASK), (_X, _Y, _IDS, _LABELS)],
    ),
    "selection": (
        lambda x, *index: x[index],
        [
            *((_X, _MASK), (_X, _IDS), (_X, _IDS, _LABELS), (_X, _MASK_2), (_SQUARE, _IDS, _IDS)),
            *((_X, _SOME), (_LABELS, _MASK), (_Y, _GROUPS), (_values(3, 2), _LABELS)),
        ],
    ),
    "selection of columns": (lambda x, index: x[:, index], [(_X, _LABELS), (_SQUARE, _IDS)]),
    "classes": (
        _set_classes,
        [(_X, _LABELS), (torch.zeros(5, 3, dtype=torch.float64), _LABELS), (_SQUARE, _LABELS)],
    ),
    "sums of classes": (_add_classes, [(_X, _LABELS, _Y[:, None].expand(5, 3)), (_X, _LABELS, _X)]),
    "weighted loss": (_weighted_loss, [(_X, _LABELS, _X[0].abs(), _Y), (_SQUARE, _LABELS, _Y, _Y)]),
    "loss of probabilities": (F.cross_entropy, [(_X, _DENSE_LABELS, _X[0].abs())]),
    "loss with positive weights": (
        lambda x, y, w, p: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p),
        [(_X, _DENSE_LABELS, _X.abs(), _X[0].abs()), (_SQUARE, _SQUARE.sigmoid(), _Y[:, None], _Y)],
    ),
    "products with anchors": (
        lambda x, anchors: (x @ anchors.t()).softmax(-1),
        [(_X, _values(4, 3)), (_X, _values(5, 3)), (_SQUARE, _SQUARE)],
    ),
    "distances": (torch.cdist, [(_X, _values(4, 3)), (_X, _values(5, 3))]),
    "pyg scatter": (
        lambda x, index, reduce: pyg.scatter(x, index, 0, 5, reduce),
        [(x, _GROUPS, name) for x in (_X, _Y) for name in ("sum", "mean", "max", "min", "mul")],
    ),
    "pyg softmax": (lambda x, index: pyg.softmax(x, index, num_nodes=5), [(_X, _GROUPS)]),
    "pyg degree": (lambda index: pyg.degree(index, 5), [(_GROUPS,)]),
    "pyg to_dense_batch": (pyg.to_dense_batch, [(_X, _GROUPS), (_Y, _GROUPS)]),
    "pyg unbatch": (pyg.unbatch, [(_X, _GROUPS)]),
    "pyg pools": (
        lambda x, batch: [
            pool(x, batch)
            for pool in (pyg_nn.global_add_pool, pyg_nn.global_mean_pool, pyg_nn.global_max_pool)
        ],
        [(_X, _GROUPS), (_SQUARE, _GROUPS)],
    ),
    "pyg one_hot": (pyg.one_hot, [(_LABELS,)]),
    "pyg masks": (lambda index: pyg.index_to_mask(index, 5), [(_IDS,), (_SOME,)]),
    "pyg ids": (pyg.mask_to_index, [(_MASK,)]),
    "pyg select": (lambda x, index: pyg.select(x, index, 0), [(_X, _MASK), (_X, _IDS)]),
    "pyg segment": (lambda x, ptr: pyg.segment(x, ptr), [(_X, torch.tensor([0, 2, 2, 4, 5]))]),
    "pyg dense adjacency": (
        lambda edges, batch: pyg.to_dense_adj(edges, batch),
        [(torch.stack([_IDS, _LABELS]), torch.tensor([0, 0, 1, 1, 1]))],
    ),
    "pyg aggregations": (
        lambda x, index: [
            aggregation(x, index, dim_size=5)
            for aggregation in (pyg_nn.VarAggregation(), pyg_nn.SoftmaxAggregation())
        ],
        [(_X, _GROUPS)],
    ),
    "pyg norms": (
        lambda x, batch: [pyg_nn.GraphNorm(3).double()(x, batch), pyg_nn.PairNorm()(x, batch)],
        [(_X, _GROUPS)],
    ),
}

USER_FUNCTIONS = [UserFunction(name, *case) for name, case in _CASES.items()]
