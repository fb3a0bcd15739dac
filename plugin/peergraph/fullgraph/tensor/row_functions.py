"""Differentiable selection of rows and its reverse."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.route import RowRequests, linear
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.conversions import take_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap


def take_selected(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of a selection from the layout of `x`. Differentiable."""
    dim = x.partitioned_dim
    assert layout.parent is not None
    parent = layout.parent

    def select(rows: Tensor) -> PartitionedTensor:
        return selected_rows(take_rows(rows, parent, dim), layout)

    def put_back(rows: Tensor) -> PartitionedTensor:
        return _with_zeros(take_rows(rows, layout, dim))

    return linear(x, select, put_back)  # type: ignore[return-value]


def selected_rows(x: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows of a selection from the layout of `x`, without autograd."""
    assert layout.parent_rows is not None
    dim = x.partitioned_dim
    return wrap(x._local.index_select(dim, layout.parent_rows), layout, dim)


def _with_zeros(rows: PartitionedTensor) -> PartitionedTensor:
    """Returns selected rows, added to zeros in the layout that they were selected from."""
    layout, dim = rows.row_layout, rows.partitioned_dim
    assert layout.parent is not None
    assert layout.parent_rows is not None
    shape = list(rows._local.shape)
    shape[dim] = layout.parent.local_count
    result = rows._local.new_zeros(shape)
    if layout.unique:
        result.index_copy_(dim, layout.parent_rows, rows._local)
    else:  # sums in a fixed order on GPUs, too
        result.movedim(dim, 0).index_put_(
            (layout.parent_rows,), rows._local.movedim(dim, 0), accumulate=True
        )
    return wrap(result, layout.parent, dim)


class NamedRows(NamedTuple):
    """Rows that partitioned ids name, as the ids were: they may change before the gradient."""

    requests: RowRequests
    rows: RowLayout
    """Of the tensor that they name rows of."""
    row_layout: RowLayout
    """Of the ids."""
    shape: torch.Size
    """Of this rank's ids."""

    @classmethod
    def of(cls, rows: RowLayout, ids: PartitionedTensor) -> NamedRows:
        """Returns the rows that ids name. Collective."""
        requests = RowRequests.of(rows, ids._local)
        return cls(requests, rows, ids.row_layout, ids._local.shape)

    def fetch(self, x: Tensor) -> PartitionedTensor:
        """Returns the rows of `x` that the ids name. Collective; differentiable."""
        return linear(x, self._fetch, self._add)  # type: ignore[return-value]

    def add(self, rows: Tensor) -> PartitionedTensor:
        """Returns zeros with rows added at the ids. Collective; differentiable."""
        return linear(rows, self._add, self._fetch)  # type: ignore[return-value]

    def _fetch(self, x: Tensor) -> PartitionedTensor:
        rows = self.requests.fetch(take_rows(x, self.rows, 0)._local)
        return wrap(rows.view(*self.shape, *rows.shape[1:]), self.row_layout, 0)

    def _add(self, rows: Tensor) -> PartitionedTensor:
        local = take_rows(rows, self.row_layout, 0)._local
        features = local.shape[len(self.shape) :]
        result = local.new_zeros((self.rows.local_count, *features))
        self.requests.add(local.reshape(self.shape.numel(), *features), result)
        return wrap(result, self.rows, 0)
