"""Operators that calls are made of: those of torch's own tests, and what scripts write."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from tests.fullgraph.operators.user_functions import USER_FUNCTIONS

# Their results are random numbers, or memory as it is.
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "exponential", "geometric")
_RANDOM += ("cauchy", "empty", "rrelu", "dropout", "fractional", "dot_product_attention")
_RANDOM += ("multi_head_attention",)  # with dropout
# Its gradient depends on which of its results others use: only one of three has one alone.
_UNDETERMINED = ("native_group_norm",)
# Its kernels of the GPU read tensors' memory without asking them.
_UNASKED = ("jiterator",)
# With other sizes they write beyond their tensors.
UNCHECKED = ("segment", "batch_norm", "lu_unpack")


def operators(part: int = 0, parts: int = 1) -> list[Any]:
    """Every `parts`-th operator that gives the same result twice.

    In a process of its own: the import changes flags of torch that other tests set.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    of_torch = sorted(op_db, key=lambda op: (op.name, op.variant_test_name))
    left_out = _RANDOM + _UNDETERMINED + _UNASKED
    of_torch = [op for op in of_torch if not any(name in op.name for name in left_out)]
    return [*USER_FUNCTIONS, *of_torch][part::parts]


def argument_names(op: Any) -> list[str]:
    """Returns the names of an operator's arguments; none where they are not known."""
    try:
        return list(inspect.signature(op.op).parameters)
    except (TypeError, ValueError):
        pass
    name = f"aten::{op.aten_name or op.name}"
    schemas = torch._C._jit_get_schemas_for_operator(name)
    if not schemas:
        return []
    names = [argument.name for argument in schemas[0].arguments]
    return ["input" if name == "self" else name for name in names]
