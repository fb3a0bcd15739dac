"""A chunk's rows as a plain tensor, which becomes a partitioned one where a function needs that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import Rule, chunk_rule

_AnyRule = TypeVar("_AnyRule", bound=Rule)


class ChunkRows:
    """The rows of a virtual rank: what a PartitionedTensor is, without the cost of one.

    A chunk is small, so that the host's time for wrapping tensors and finding their rules would
    bound the time of a pass. Functions with a rule for them (:data:`CHUNK_RULES`) compute on the
    plain rows; any other gets :attr:`partitioned`.

    Args:
        rows: `layout.local_count` along `partitioned_dim`, with autograd's history.
        layout: of the virtual rank.
        partitioned_dim: not negative.
    """

    __slots__ = ("_partitioned", "partitioned_dim", "row_layout", "rows")

    def __init__(self, rows: Tensor, layout: RowLayout, partitioned_dim: int = 0) -> None:
        self.rows = rows
        self.row_layout = layout
        self.partitioned_dim = partitioned_dim
        self._partitioned: PartitionedTensor | None = None

    @property
    def partitioned(self) -> PartitionedTensor:
        """The same rows as a partitioned tensor. Differentiable."""
        if self._partitioned is None or (torch.is_grad_enabled() and self.rows.requires_grad):
            self._partitioned = from_local(self.rows, self.row_layout, self.partitioned_dim)
        return self._partitioned

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to the rows."""
        return self.rows.requires_grad

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows.dtype

    def dim(self) -> int:
        """Returns the number of dimensions."""
        return self.rows.dim()

    def to_local(self) -> Tensor:
        """Returns the plain rows. Differentiable."""
        return self.rows

    @property
    def _local(self) -> Tensor:
        return self.rows

    def with_rows(
        self, local: Tensor, dim: int | None = None, layout: RowLayout | None = None
    ) -> ChunkRows:
        """Returns other rows, as :meth:`PartitionedTensor.with_rows` does, with their history."""
        dim = self.partitioned_dim if dim is None else dim
        return ChunkRows(local, self.row_layout if layout is None else layout, dim)


def partitioned(value: Any) -> Any:
    """Returns a chunk's rows as a partitioned tensor; any other value as it is."""
    return value.partitioned if type(value) is ChunkRows else value


def chunk_rows(value: Any) -> Any:
    """Returns a partitioned tensor of a virtual rank as plain rows; any other value as it is."""
    if isinstance(value, PartitionedTensor):
        return ChunkRows(value.to_local(), value.row_layout, value.partitioned_dim)
    return value


def serves_chunks(*functions: Callable[..., Any]) -> Callable[[_AnyRule], _AnyRule]:
    """Registers a rule of one tensor, which makes its result by ``with_rows``, for chunks, too.

    Args:
        functions: of torch, with the arguments of the rule.
    """

    def register(rule: _AnyRule) -> _AnyRule:
        names = inspect.signature(rule).parameters.keys()

        def run(x: Any, *args: Any, **kwargs: Any) -> Any:
            if type(x) is not ChunkRows or not kwargs.keys() <= names:
                return None
            return rule(x, *args, **kwargs)

        chunk_rule(*functions)(run)
        return rule

    return register
