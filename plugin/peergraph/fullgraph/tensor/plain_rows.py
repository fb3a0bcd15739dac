"""Calls that rules below autograd cannot serve, and that are made again with other arguments."""

from __future__ import annotations

from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout


class PlainRowsError(ValueError):
    """A rule below autograd met a plain tensor of all rows whose gradient needs a rule above it.

    Raised where the rows were named by a list of ids, as in ``z[heads] * relation[types]``: then
    the tensor follows the list, and the call is made again with each rank's part of it.

    Args:
        message: of the error where the tensor is no argument of the call.
        tensor: the plain tensor.
        layout: the rows.
        dim: the dimension of rows in `tensor`.
    """

    again = "with own rows"
    """What makes the arguments of the second call, in :data:`METHODS` of the registry."""

    def __init__(self, message: str, tensor: Tensor, layout: RowLayout, dim: int) -> None:
        super().__init__(message)
        self.tensor, self.row_layout, self.dim = tensor, layout, dim


class SplitRowsError(NotImplementedError):
    """A view splits rows that a list of ids named, as ``z[ids.view(-1)].view(pairs, k, -1)``.

    The call is made again with a copy whose rows are on the ranks as the view needs them. Writes
    into either of the two are refused as long as both are in use.

    Args:
        message: of the error where the rows cannot be moved.
        layout: of the list.
        size: of the view.
    """

    again = "with moved rows"
    """As of :class:`PlainRowsError`."""

    def __init__(self, message: str, layout: RowLayout, size: tuple[int, ...]) -> None:
        super().__init__(message)
        self.row_layout, self.size = layout, size
