"""Operations along dimensions that are not partitioned: each rank runs them on its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from peergraph.fullgraph.tensor.arguments import not_implemented, require_same_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import Rule, family

# Operations with an argument `dim`, without which they take all dimensions.
_NAMES = {
    f"aten::{name}"
    for name in (
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "flip", "roll"),
        *("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "argmax", "argmin"),
        *("amax", "amin", "aminmax", "max", "min", "any", "all", "count_nonzero", "nansum"),
        *("prod", "logsumexp", "norm", "linalg_vector_norm", "var", "std", "var_mean"),
        *("std_mean", "glu", "glu_backward", "renorm", "_is_any_true", "_is_all_true"),
    )
}

OVER_ROWS: dict[OpOverload, Rule] = {}
"""Rules for the same overloads where they run along the partitioned dimension."""


def over_rows(*overloads: OpOverload) -> Callable[[Rule], Rule]:
    """Registers a rule for `overloads` along the partitioned dimension.

    The rule is called with the tensor, the list of dimensions, and further arguments as given.
    """

    def register(function: Rule) -> Rule:
        for overload in overloads:
            OVER_ROWS[overload] = function
        return function

    return register


@family
def along_columns(overload: OpOverload) -> Rule | None:
    """The rule of an operation with an argument `dim` or `dims`."""
    schema = overload._schema
    if schema.name not in _NAMES or schema.is_mutable:
        return None
    names = [argument.name for argument in schema.arguments]
    dim_name = next((name for name in ("dim", "dims") if name in names), None)
    place = names.index(dim_name) if dim_name else -1
    default = schema.arguments[place].default_value if place >= 0 else None
    keepdim_place = names.index("keepdim") if "keepdim" in names else -1
    returns_list = len(schema.returns) > 1
    reduces = keepdim_place >= 0 or schema.name == "aten::count_nonzero" or dim_name is None

    def run(*args: Any, **kwargs: Any) -> Any:
        x = args[0]
        if type(x) is not PartitionedTensor:
            not_implemented(overload, "its first tensor is plain")
        if 0 <= place < len(args):
            given = args[place]
        else:
            given = kwargs.get(dim_name, default) if dim_name else None
        dims = x._local.dim()
        if given is None or given == []:
            wanted = list(range(dims))
        else:
            wanted = [given % dims] if isinstance(given, int) else [d % dims for d in given]
        if x.partitioned_dim in wanted:
            rule = OVER_ROWS.get(overload)
            if rule is None:
                not_implemented(overload, "it runs along the partitioned dimension")
            return rule(overload, wanted, *args, **kwargs)
        local_args = [_local_of(overload, x, arg) for arg in args]
        result = overload(*local_args, **kwargs)
        dim = x.partitioned_dim
        if reduces:
            keepdim = kwargs.get("keepdim", False)
            if 0 <= keepdim_place < len(args):
                keepdim = args[keepdim_place]
            if not keepdim:
                dim -= sum(removed < dim for removed in wanted)
        if returns_list:
            return tuple(wrap(part, x.layout, dim) for part in result)
        return wrap(result, x.layout, dim)

    return run


def _local_of(overload: OpOverload, x: PartitionedTensor, arg: Any) -> Any:
    if type(arg) is not PartitionedTensor:
        if isinstance(arg, Tensor) and arg.dim():
            not_implemented(overload, "a plain tensor meets a partitioned one")
        return arg
    require_same_rows(overload, x.layout, arg.layout)
    return arg._local
