"""What operators run the functions of autograd with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from peergraph.aggregate.ops.operands import use_deterministic
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix


class Context:
    """Stands for autograd's context where an operator runs a function's forward or backward."""

    def __init__(self, needs: list[bool], saved: tuple[Tensor | None, ...] = (), **state: Any):
        self.needs_input_grad = needs
        self.saved_tensors = saved
        self.__dict__.update(state)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Operators get all gradients."""


def gradient_matrix(matrix: EdgeMatrix, need: bool = True) -> EdgeMatrix | None:
    """Returns what gradients of sources are summed over; None for atomics or without any."""
    return matrix.gradient_matrix("auto", use_deterministic(None)) if need else None


def or_empty(tensor: Tensor | None, like: Tensor) -> Tensor:
    """Returns a gradient; an empty tensor where there is none, since operators return tensors."""
    return like.new_empty(0) if tensor is None else tensor.contiguous()
