"""Calls that rules below autograd cannot serve, and that are made again with other arguments."""

from __future__ import annotations

from typing import Any

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

    def __init__(self, message: str, tensor: Tensor, layout: RowLayout, dim: int) -> None:
        super().__init__(message)
        self.tensor, self.layout, self.dim = tensor, layout, dim

    def enter(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with this rank's rows in the place of the plain tensor.

        Raises this error where it is none of them.
        """
        from peergraph.fullgraph.tensor.conversions import distribute

        if not any(value is self.tensor for value in (*args, *kwargs.values())):
            raise self
        rows = distribute(self.tensor, self.layout, self.dim)

        def entered(value: Any) -> Any:
            return rows if value is self.tensor else value

        return tuple(map(entered, args)), {name: entered(v) for name, v in kwargs.items()}


class SplitRowsError(NotImplementedError):
    """A view splits rows that a list of ids named, as ``z[ids.view(-1)].view(pairs, k, -1)``.

    The call is made again with a copy whose rows are on the ranks as the view needs them. Writes
    into either of the two are refused as long as both are in use.

    Args:
        message: of the error where the rows cannot be moved.
        layout: of the list.
        size: of the view.
    """

    def __init__(self, message: str, layout: RowLayout, size: tuple[int, ...]) -> None:
        super().__init__(message)
        self.layout, self.size = layout, size

    def enter(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with the rows in the other layout. Collective.

        Raises this error where the view does not split the rows in equal parts.
        """
        from peergraph.fullgraph.tensor.conversions import redistribute
        from peergraph.fullgraph.tensor.row_copies import refuse_writes

        x: Any = args[0] if args else None
        count = 1
        for place, part in enumerate(self.size):
            count *= part
            if count == self.layout.size and place:
                break
        else:
            raise self
        if getattr(x, "layout", None) is not self.layout or x.partitioned_dim != 0:
            raise self
        first = self.size[0]
        moved: Any = redistribute(x, self.layout.blocks(first).repeat(count // max(first, 1)))
        if moved._local.untyped_storage()._cdata != x._local.untyped_storage()._cdata:
            refuse_writes(x._local, moved._local)
        return (moved, *args[1:]), kwargs
