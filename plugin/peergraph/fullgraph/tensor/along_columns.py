"""Operations along dimensions that are not partitioned: each rank runs them on its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.exchange.transport import ReduceOp, reductions_of
from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import Rule, family, register_in

aten = torch.ops.aten

# Operations with an argument `dim`, without which they take all dimensions.
_NAMES = {
    f"aten::{name}"
    for name in (
        *(
            "_safe_softmax",
            "_softmax",
            "_log_softmax",
            "_softmax_backward_data",
            "_log_softmax_backward_data",
        ),
        *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "flip", "roll"),
        *("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "argmax", "argmin"),
        *("amax", "amin", "aminmax", "max", "min", "any", "all", "count_nonzero", "nansum"),
        *("prod", "logsumexp", "norm", "linalg_vector_norm", "var", "std", "var_mean"),
        *("std_mean", "glu", "glu_backward", "_is_any_true", "_is_all_true"),
    )
}

# Those whose rules along the partitioned dimension take complex numbers.
_OF_COMPLEX_ROWS = {
    *(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims),
    *(aten.count_nonzero.default, aten.count_nonzero.dim_IntList),
}


class OverRows(NamedTuple):
    """A call of one of these operations along the partitioned dimension."""

    name: str
    """Of the operation."""
    x: PartitionedTensor
    dims: list[int]
    """Along which it runs, not negative; the partitioned one is among them."""
    keepdim: bool
    options: dict[str, Any]
    """The other arguments by name, without those that have their default."""

    def all_reduce(self, local: Tensor, op: ReduceOp = "sum") -> Tensor:
        """Returns the reduction of each rank's `local`. Collective."""
        return reductions_of(self.x.row_layout.group).all_reduce(local, op)


OVER_ROWS: dict[OpOverload, Callable[[OverRows], Any]] = {}
"""Rules for the same overloads where they run along the partitioned dimension."""
_OverRowsRule = TypeVar("_OverRowsRule", bound=Callable[[OverRows], Any])


def over_rows(*overloads: OpOverload) -> Callable[[_OverRowsRule], _OverRowsRule]:
    """Registers a rule for `overloads` along the partitioned dimension."""
    return register_in(OVER_ROWS, *overloads)


@family
def along_columns(overload: OpOverload) -> Rule | None:
    """The rule of an operation with an argument `dim` or `dims`."""
    schema = overload._schema
    if schema.name not in _NAMES or schema.is_mutable:
        return None
    names = [argument.name for argument in schema.arguments]
    dim_name = "dims" if "dims" in names else "dim"
    default = next((a.default_value for a in schema.arguments if a.name == dim_name), None)
    returns_list = len(schema.returns) > 1
    reduces = "keepdim" in names or schema.name == "aten::count_nonzero" or dim_name not in names

    def run(*args: Any, **kwargs: Any) -> Any:
        x = args[0]
        if type(x) is not PartitionedTensor:
            not_implemented(overload, "its first tensor is plain")
        options = {**dict(zip(names, args, strict=False)), **kwargs}
        dims = resolve_dims(options.pop(dim_name, default), x._local.dim())
        keepdim = options.pop("keepdim", False)
        if x.partitioned_dim in dims:
            rule = OVER_ROWS.get(overload)
            if rule is None:
                not_implemented(overload, "it runs along the partitioned dimension")
            if x._local.is_complex() and overload not in _OF_COMPLEX_ROWS:
                reason = (
                    "it runs over rows of complex numbers: use x.abs() or torch.view_as_real(x)"
                )
                not_implemented(overload, reason)
            return rule(OverRows(schema.name.removeprefix("aten::"), x, dims, keepdim, options))
        local_args = [_local_of(overload, x, arg) for arg in args]
        result = overload(*local_args, **kwargs)
        dim = x.partitioned_dim
        if reduces and not keepdim:
            dim -= sum(removed < dim for removed in dims)
        if returns_list:
            return tuple(wrap(part, x.row_layout, dim) for part in result)
        return wrap(result, x.row_layout, dim)

    return run


def resolve_dims(dim: int | Sequence[int] | None, count: int) -> list[int]:
    """Returns dimensions, not negative; all `count` where `dim` is None or empty."""
    if isinstance(dim, int):
        return [dim % count]
    return [place % count for place in dim] if dim else list(range(count))


def _local_of(overload: OpOverload, x: PartitionedTensor, arg: Any) -> Any:
    if type(arg) is not PartitionedTensor:
        if isinstance(arg, Tensor) and arg.dim():
            not_implemented(overload, "a plain tensor meets a partitioned one")
        return arg
    require_same_rows(overload, x.row_layout, arg.row_layout)
    return arg._local
