"""Checks of the tensors that verbs of a partitioned structure take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.structure.edge_call import EdgeCall, Operands
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.selection import in_layout


class OperandChecks:
    """The features that verbs of a structure take, by their rows; results are differentiable.

    Args:
        sources, destinations, edges: the layouts of their rows.
    """

    def __init__(self, sources: RowLayout, destinations: RowLayout, edges: RowLayout) -> None:
        self.sources = sources
        self.destinations = destinations
        self.edges = edges

    def source(self, name: str, x: Any) -> PartitionedTensor | None:
        """Returns features of sources, or None; raises for anything else."""
        return _check_rows(name, x, self.sources, "sources")

    def destination(self, name: str, x: Any) -> PartitionedTensor | None:
        """Returns features of destinations, or None; raises for anything else."""
        return _check_rows(name, x, self.destinations, "destinations")

    def edge(self, name: str, e: Any) -> PartitionedTensor | None:
        """Returns features of edges, or None; raises for anything else."""
        return _check_rows(name, e, self.edges, "edges")

    def check_call(self, call: EdgeCall) -> EdgeCall:
        """Returns the call with operands whose rows are in place; raises for other operands."""
        return call._replace(
            sources=_check_each(self.source, call.sources),
            destinations=_check_each(self.destination, call.destinations),
            edges=_check_each(self.edge, call.edges),
            others=_check_each(self._check_other, call.others),
            parameters=_check_each(self.parameter, call.parameters),
        )

    def _check_other(self, name: str, x: Any) -> PartitionedTensor | None:
        return _check_rows(name, x, getattr(x, "row_layout", self.edges), "rows")

    def parameter(self, name: str, tensor: Tensor | None) -> Tensor | None:
        """Returns a tensor that is equal on all ranks; a parameter is made so at its first use.

        Raises:
            TypeError: it is a PartitionedTensor.
        """
        if isinstance(tensor, PartitionedTensor):
            raise TypeError(
                f"{name} must be a plain tensor that is equal on all ranks, got {tensor.row_layout}"
            )
        if tensor is not None:
            check_parameters((tensor,), self.sources.group)
        return tensor

    def check_same_nodes(self, what: str) -> None:
        """Raises ValueError unless sources and destinations are the same rows."""
        if not self.sources.same_rows(self.destinations):
            raise ValueError(
                f"{what} needs destinations that are the sources, got sources of "
                f"{self.sources} and destinations of {self.destinations}"
            )


def _check_each(check: Callable[[str, Any], Tensor | None], operands: Operands) -> Operands:
    return {name: check(name, operand) for name, operand in operands.items()}


def local_rows_of(tensor: PartitionedTensor | None) -> Tensor | None:
    """Returns this rank's rows of an operand, or None for None."""
    return None if tensor is None else tensor.to_local()


def _check_rows(name: str, tensor: Any, layout: RowLayout, rows: str) -> PartitionedTensor | None:
    """Returns an operand, or None for None. Collective where ids selected its rows.

    Args:
        name: of the argument, for errors.
        tensor: a PartitionedTensor [rows of `layout`, *features]. Where a list of ids selected
            them, ``x[permutation]``, they are sent to the ranks of `layout`.
        layout: the rows that it must have.
        rows: what the rows are, for errors.

    Raises:
        TypeError: it is no PartitionedTensor.
        ValueError: it has other rows.
    """
    if tensor is None:
        return None
    if not isinstance(tensor, PartitionedTensor):
        what = f"a plain tensor {list(tensor.shape)}" if isinstance(tensor, Tensor) else tensor
        raise TypeError(
            f"{name} must be a PartitionedTensor with the rows of the {rows}, got {what}; "
            "peergraph.fullgraph.distribute takes this rank's rows of a tensor that is equal on "
            "all ranks"
        )
    operand = in_layout(tensor, layout)
    if operand is None:
        raise ValueError(
            f"{name} must have the rows of the {rows}, {layout}, in dimension 0, got "
            f"{tensor.row_layout} in dimension {tensor.partitioned_dim} of {list(tensor.shape)}"
        )
    return operand
