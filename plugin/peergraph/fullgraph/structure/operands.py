"""Checks of the tensors that verbs of a partitioned structure take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


def local_rows(name: str, tensor: Any, layout: RowLayout, rows: str) -> Tensor:
    """Returns this rank's rows of an operand, differentiable.

    Args:
        name: of the argument, for errors.
        tensor: a PartitionedTensor [rows of `layout`, *features].
        layout: the rows that it must have.
        rows: what the rows are, for errors.

    Raises:
        TypeError: it is no PartitionedTensor.
        ValueError: it has other rows.
    """
    if not isinstance(tensor, PartitionedTensor):
        what = f"a plain tensor {list(tensor.shape)}" if isinstance(tensor, Tensor) else tensor
        raise TypeError(
            f"{name} must be a PartitionedTensor with the rows of the {rows}, got {what}; "
            "peergraph.fullgraph.distribute takes this rank's rows of a tensor that is equal on "
            "all ranks"
        )
    if tensor.partitioned_dim != 0 or not layout.same_rows(tensor.layout):
        raise ValueError(
            f"{name} must have the rows of the {rows}, {layout}, in dimension 0, got "
            f"{tensor.layout} in dimension {tensor.partitioned_dim} of {list(tensor.shape)}"
        )
    return tensor.to_local()


def parameter(name: str, tensor: Tensor | None, layout: RowLayout) -> Tensor | None:
    """Returns a tensor that is equal on all ranks; a parameter is made so at its first use.

    Raises:
        TypeError: it is a PartitionedTensor.
    """
    if isinstance(tensor, PartitionedTensor):
        raise TypeError(
            f"{name} must be a plain tensor that is equal on all ranks, got {tensor.layout}"
        )
    if tensor is not None:
        check_parameters((tensor,), layout.group)
    return tensor
