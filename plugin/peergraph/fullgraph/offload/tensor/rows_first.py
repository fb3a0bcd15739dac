"""Tensors whose rows are merged with other dimensions or come after them, as stores have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

Undo = Callable[[Tensor], Tensor]
_Rows = TypeVar("_Rows", bound=PartitionedTensor)


def rows_first(x: _Rows, base: RowLayout) -> tuple[_Rows, Undo]:
    """Returns a view of which the first dimension has the rows of `base`, and nothing else.

    Args:
        x: partitioned by rows of `base`, or by such rows repeated or copied (RowLayout.repeat,
            RowLayout.tile).
        base: the rows.

    Returns:
        The view, and the function that makes the tensor of the view, also of a plain one.
    """
    dim, layout, steps = x.partitioned_dim, x.row_layout, list[Undo]()
    view: Tensor = x
    if dim:
        view = view.movedim(dim, 0)
        steps.append(lambda rows: rows.movedim(0, dim))
    while layout is not base:
        assert layout.parent is not None
        if layout.repeats > 1:
            view = view.reshape(layout.parent.size, layout.repeats, *view.shape[1:])
            steps.append(lambda rows: rows.flatten(0, 1))
        else:
            view = view.reshape(layout.tiles, layout.parent.size, *view.shape[1:]).movedim(1, 0)
            steps.append(lambda rows: rows.movedim(0, 1).flatten(0, 1))
        layout = layout.parent

    def undo(rows: Tensor) -> Tensor:
        for step in reversed(steps):
            rows = step(rows)
        return rows

    return view, undo  # type: ignore[return-value]
