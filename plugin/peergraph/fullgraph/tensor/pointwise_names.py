"""The pointwise operations: they compute each element from the elements at its position."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

# Pointwise operations without the tag, or tagged only in later versions of torch.
_UNTAGGED = {
    f"aten::{name}"
    for name in (
        *("clone", "alias", "detach", "lift_fresh", "positive", "_to_copy"),
        *("copy_", "fill_", "zero_", "fill", "zero", "copy", "conj_physical"),
        *("zeros_like", "ones_like", "empty_like", "full_like"),
        *("threshold_backward", "gelu_backward", "silu_backward", "mish_backward"),
        *("elu_backward", "leaky_relu_backward", "hardtanh_backward", "softplus_backward"),
        *("hardswish_backward", "hardsigmoid_backward", "sigmoid_backward", "tanh_backward"),
        *("logit_backward", "softshrink_backward"),
        *("hardshrink_backward", "_prelu_kernel", "_prelu_kernel_backward", "nan_to_num"),
        *("elu", "leaky_relu", "hardtanh", "softplus", "hardswish", "softshrink", "hardshrink"),
        *("floor_divide", "heaviside", "masked_fill", "threshold"),
        *("complex", "polar"),
        *("celu", "hardsigmoid", "mish", "rrelu_with_noise_backward"),
    )
}


def is_pointwise(overload: OpOverload) -> bool:
    """Returns whether an operation is pointwise, in place or not, and draws no random numbers."""
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return False
    name = overload._schema.name
    is_listed = name in _UNTAGGED or name.removesuffix("_") in _UNTAGGED
    return is_listed or torch.Tag.pointwise in overload.tags
