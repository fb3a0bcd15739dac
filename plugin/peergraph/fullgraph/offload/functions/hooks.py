"""Hooks on offloaded tensors, and gradients with respect to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.functions.recording import refuse
from peergraph.fullgraph.offload.gradients.segment import gets_gradient, make_boundary, row_operand
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.tensor.nested import tensors_in
from peergraph.fullgraph.tensor.registry import offloaded_rule


def require_node(name: str, x: OffloadedTensor) -> None:
    """Has gradients of later functions of a tensor flow to its own node of autograd.

    Raises:
        NotImplementedError: gradients of earlier ones do not.
    """
    if not x.requires_grad or gets_gradient(x):
        return
    if x._content.is_passed or row_operand(x).identity is not None:
        refuse(
            name,
            "gradients of functions that were called before do not reach the tensor, which is "
            "between two layers; call x.retain_grad() as soon as it is made",
        )
    make_boundary(x)


@offloaded_rule(torch.autograd.grad)
def _autograd_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    for x in tensors_in(inputs):
        if isinstance(x, OffloadedTensor):
            require_node("autograd.grad", x)
    with torch._C.DisableTorchFunctionSubclass():
        return torch.autograd.grad(outputs, inputs, *args, **kwargs)


def _with_node(name: str) -> Callable[..., Any]:
    """The rule of a method that needs the tensor's own node of autograd."""
    function = getattr(Tensor, name)

    def run(x: OffloadedTensor, *args: Any) -> Any:
        require_node(name, x)
        with torch._C.DisableTorchFunctionSubclass():
            return function(x, *args)

    return run


for _name in ("register_hook", "retain_grad", "register_post_accumulate_grad_hook"):
    offloaded_rule(getattr(Tensor, _name))(_with_node(_name))
