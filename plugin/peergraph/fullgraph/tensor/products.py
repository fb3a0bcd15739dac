"""Products of matrices: local where rows stay, added up over the ranks where rows contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_dense,
    require_same_rows,
    rows_in_layout,
)
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import RULES, rule

aten = torch.ops.aten


class _Factors:
    """The local parts of two factors `a` [..., i, k] and `b` [..., k, j], or vectors [k]."""

    row_layout: RowLayout
    a: Tensor
    b: Tensor
    dim: int | None
    """The partitioned dimension of the product; None where it contracts."""
    dims: int
    """Dimensions of the product."""

    def __init__(self, op: OpOverload, a: Any, b: Any) -> None:
        a_dim = a.partitioned_dim if type(a) is PartitionedTensor else None
        b_dim = b.partitioned_dim if type(b) is PartitionedTensor else None
        self.row_layout = b.row_layout if a_dim is None else a.row_layout
        self.a = a if a_dim is None else a._local
        self.b = b if b_dim is None else b._local
        a_dims, b_dims = self.a.dim(), self.b.dim()
        self.dims = a_dims + b_dims - 2 if b_dims < 3 else 3
        a_contracted, b_contracted = a_dims - 1, max(b_dims - 2, 0)
        if a_dim == a_contracted or b_dim == b_contracted:
            self.dim = None
            meeting = (a_contracted, b_contracted)
        elif b_dims == 3 and 0 in (a_dim, b_dim):
            self.dim = 0
            meeting = (0, 0)
        elif a_dim is not None and b_dim is not None:
            not_implemented(op, f"the result has {self.row_layout.size} rows and as many columns")
        elif a_dim is not None:
            self.dim = a_dim
            return
        else:
            self.dim = self.dims - 1
            return
        if a_dim is None:
            self.a = self._rows_of_plain(op, self.a, meeting[0])
        if b_dim is None:
            self.b = self._rows_of_plain(op, self.b, meeting[1])
        if a_dim not in (None, meeting[0]) or b_dim not in (None, meeting[1]):
            not_implemented(op, "the rows of the factors meet other dimensions")
        if a_dim is not None and b_dim is not None:
            self.b = rows_in_layout(op, self.b, b_dim, b.row_layout, self.row_layout)

    def _rows_of_plain(self, op: OpOverload, factor: Tensor, dim: int) -> Tensor:
        if factor.shape[dim] != self.row_layout.size:  # products do not broadcast
            raise ValueError(
                f"{op}: a plain factor of shape {tuple(factor.shape)} must have "
                f"{self.row_layout.size} rows along dimension {dim}"
            )
        return local_rows_of_plain(op, factor, self.row_layout, dim)


def _register_product(op: OpOverload) -> None:
    def run(a: Any, b: Any) -> Tensor:
        factors = _Factors(op, a, b)
        local = op(factors.a, factors.b)
        if factors.dim is None:
            return sum_of_ranks(local, factors.row_layout.group)
        return wrap(local, factors.row_layout, factors.dim)

    RULES[op] = run


def _register_sum_with_product(op: OpOverload, multiply: OpOverload) -> None:
    def run(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
        is_local = type(a) is not PartitionedTensor and type(b) is not PartitionedTensor
        factors = None if is_local else _Factors(op, a, b)
        if factors is None or factors.dim is None:
            product = multiply(a, b)
            if not (product.is_floating_point() or product.is_complex()):
                beta, alpha = int(beta), int(alpha)  # as torch scales integers
            result: Tensor = product * alpha if alpha != 1 else product
            return result + c * beta if beta else result
        layout, from_end = factors.row_layout, factors.dim - factors.dims
        if type(c) is not PartitionedTensor:
            c = local_rows_of_plain(op, c, layout, from_end)
        else:
            require_same_rows(op, layout, c.row_layout)
            if c.partitioned_dim - c._local.dim() != from_end:
                not_implemented(op, "the rows of the tensors meet other dimensions")
            c = c._local
        if multiply is aten.mv.default:  # torch forgets that c broadcasts with no rows
            c = c.expand(factors.a.shape[0])
        return wrap(op(c, factors.a, factors.b, beta=beta, alpha=alpha), layout, factors.dim)

    RULES[op] = run


for _op in (aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot):
    _register_product(_op.default)
_register_sum_with_product(aten.addmm.default, aten.mm.default)
_register_sum_with_product(aten.addmv.default, aten.mv.default)
_register_sum_with_product(aten.baddbmm.default, aten.bmm.default)


@rule(aten._sparse_addmm.default, aten._sparse_mm.default)
def sparse_product(*factors: Any, **scales: Any) -> Tensor:
    """A product with a sparse matrix, which is refused with the way out."""
    for factor in factors:
        if type(factor) is not PartitionedTensor:
            require_dense("a product with rows", factor)
    not_implemented("torch.sparse", "its factors are partitioned")


@rule(aten.addmm_.default)
def add_product_(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Adds a product to `c` in place."""
    op = aten.addmm_.default
    has_rows = any(type(factor) is PartitionedTensor for factor in (a, b))
    factors = _Factors(op, a, b) if has_rows else None
    if factors is None or factors.dim is None:  # the product is plain
        result: Tensor = c.copy_(RULES[aten.addmm.default](c, a, b, beta=beta, alpha=alpha))
        return result
    if type(c) is not PartitionedTensor:
        not_implemented(op, "the tensor that is added to must have the rows of the product")
    require_same_rows(op, factors.row_layout, c.row_layout)
    if c.partitioned_dim != factors.dim:
        not_implemented(op, "the rows of the tensors meet other dimensions")
    c._local.addmm_(factors.a, factors.b, beta=beta, alpha=alpha)
    return c
