"""Refuses transforms of functions that would lose gradients or rows of partitioned tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

_functorch_levels = torch._C._functorch.peek_interpreter_stack
_has_storage = torch._C._has_storage
_is_tracing = torch._C._is_tracing


def check_transforms(tensor: Tensor | None = None) -> None:
    """Raises NotImplementedError while a transform differentiates, batches or traces operations.

    They do so by other ways than autograd: local rows would enter without their tangents, or a
    trace would hold one rank's rows.

    Args:
        tensor: a plain tensor that may be a batch of gradients (``is_grads_batched``).
    """
    # Read at every operation, so it takes as few calls as possible.
    is_transformed = _functorch_levels() is not None or forward_ad._current_level >= 0
    is_batch = type(tensor) is Tensor and not _has_storage(tensor)
    if not is_transformed and not is_batch and not _is_tracing():
        return
    if _is_tracing():
        raise NotImplementedError(
            "torch.jit.trace cannot trace operations on partitioned tensors, which exchange rows "
            "of a full graph: call the model itself, or trace it on plain tensors"
        )
    if forward_ad._current_level >= 0:
        raise NotImplementedError(
            "forward-mode autograd (torch.autograd.forward_ad, torch.func.jvp) is not implemented "
            "for partitioned tensors: use torch.autograd.grad, or torch.autograd.functional.jvp "
            "with strategy 'reverse-mode'"
        )
    raise NotImplementedError(
        "transforms of torch.func (grad, vjp, vmap, ...), vectorize=True and is_grads_batched=True "
        "are not implemented for partitioned tensors: use torch.autograd.grad (create_graph=True "
        "for higher derivatives) with torch.func.functional_call, one gradient at a time"
    )
