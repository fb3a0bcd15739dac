"""Features of a batch that stay in the store until something needs them as a matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from peergraph.memory import TableRows
from peergraph.store import StoragelessTensor, TableTensor, mode_for

aten = torch.ops.aten


class LazyTable(TableTensor):
    """A shared tensor that gives :class:`LazyRows` where rows are selected by a list of ids."""

    @classmethod
    def of(cls, tensor: TableTensor) -> Self:
        """The same table."""
        return cls(tensor.store, tensor.owner, tensor.table_name, tensor.device)

    def rows(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows ``ids``; gathered only where they are to be written, or to another device."""
        if out is not None or ids.dim() != 1 or self.device != self.table.device:
            return super().rows(ids, out)
        return LazyRows(TableRows(self.table, ids))


class _Values:
    """Rows as a matrix, once they are gathered; shared by all handles of a tensor.

    Args:
        rows: of a table.
        base: those of which these are the first, and which change where these do.
    """

    def __init__(self, rows: TableRows, base: _Values | None = None) -> None:
        self.rows = rows
        self.base = base
        self._tensor: Tensor | None = None

    def found(self) -> Tensor | None:
        """The matrix, if there is one by now."""
        of_base = None if self.base is None else self.base.found()
        return self._tensor if of_base is None else of_base[: self.rows.shape[0]]

    def whole(self) -> Tensor:
        """The matrix; gathered, at the first call, alone."""
        found = self.found()
        if found is None:
            # A tensor of inference mode could not serve gradients later.
            with torch.inference_mode(False):
                found = self._tensor = self.rows.gather()
        return found

    def shared(self) -> Tensor:
        """The matrix as a view of the base's, which sees what is written to it."""
        return self.whole() if self.base is None else self.base.shared()[: self.rows.shape[0]]


class LazyRows(StoragelessTensor):
    """Rows of a table as a tensor ``[rows, ...]`` that is gathered when first used as one.

    Size, dtype and device are real. The first rows, ``x[:n]``, are lazy as well. Once gathered the
    values are kept, and layers use those; in-place operations change them, also by way of views and
    of ``x.numpy()``, and not the table. Those that change a shape in place raise
    ``NotImplementedError``. Pickles, and is deep-copied, as a plain tensor.
    """

    table_rows: TableRows
    _matrix: _Values

    def __new__(cls, rows: TableRows, values: _Values | None = None) -> Self:
        """Args:
        rows: of a table.
        values: of these rows, where another tensor has them already.
        """
        tensor = cls._make(rows.shape, rows.dtype, rows.device)
        tensor.table_rows = rows
        tensor._matrix = _Values(rows) if values is None else values
        return tensor

    @property
    def is_gathered(self) -> bool:
        """Whether there is a matrix of the rows by now."""
        return self._matrix.found() is not None

    def whole(self) -> Tensor:
        """The rows as a plain tensor, gathered at the first call; asynchronous on CUDA."""
        return self._matrix.whole()

    def source(self, reads: int) -> Tensor | TableRows:
        """What a kernel should read `reads` rows of: the table, or the gathered rows."""
        if self.is_gathered or not self.table_rows.pays_to_read(reads):
            return self.whole()
        return self.table_rows

    def first(self, count: int) -> Tensor:
        """The first rows."""
        if self.is_gathered:
            return self.whole()[:count]
        rows = self.table_rows.first(count)
        return LazyRows(rows, _Values(rows, self._matrix))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        if isinstance(tensor, LazyRows):
            if func in (aten.detach.default, aten.alias.default):
                return LazyRows(tensor.table_rows, tensor._matrix)
            if func is aten.slice.Tensor:
                count = _first_rows(*args, **kwargs)
                if count is not None:
                    return tensor.first(count)
            if torch.Tag.inplace_view in func.tags:
                raise NotImplementedError(
                    f"{func} changes the shape of a LazyRows in place; work on x.clone()"
                )
        # Views may be written to, later.
        aliases = any(argument.alias_info is not None for argument in func._schema.arguments)

        def matrix(lazy: LazyRows) -> Tensor:
            return lazy._matrix.shared() if aliases else lazy.whole()

        args_, kwargs_ = tree_map_only(LazyRows, matrix, (args, kwargs))
        with mode_for(func):
            result = func(*args_, **kwargs_)
        # What an in-place operation returns is its argument.
        return tensor if func._schema.name.endswith("_") and result is args_[0] else result

    def __copy__(self) -> LazyRows:
        copied = LazyRows(self.table_rows, self._matrix)
        copied.requires_grad = self.requires_grad
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.whole().clone().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def reduce_to_process(self) -> Any:
        """The values, as a plain tensor in memory that both processes map."""
        return reduce_tensor(self._values())  # type: ignore[no-untyped-call]

    def _values(self) -> Tensor:
        return self.whole().detach().requires_grad_(self.requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        state = "gathered" if self.is_gathered else "not gathered"
        return f"LazyRows({list(self.shape)}, {self.dtype}, device='{self.device}', {state})"

    def data_ptr(self) -> int:
        """Of the gathered rows."""
        return self._matrix.shared().data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """The gathered rows as a NumPy array; to write to it changes them."""
        return self._matrix.shared().numpy(force=force)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._matrix.shared().__dlpack__(**kwargs)

    def untyped_storage(self) -> torch.UntypedStorage:
        """Of the gathered rows."""
        return self._matrix.shared().untyped_storage()

    def _typed_storage(self) -> Any:
        return self._matrix.shared()._typed_storage()  # type: ignore[no-untyped-call]

    def pin_memory(self, device: Any = None) -> Tensor:
        """The gathered rows, pinned."""
        return self.whole().pin_memory()

    def record_stream(self, stream: torch.cuda.Stream) -> None:  # type: ignore[override]
        """Keeps ids, addresses and gathered rows until a stream has used them."""
        rows = self.table_rows
        for tensor in (rows.ids, rows._addresses, self._matrix.found()):
            if tensor is not None:
                tensor.record_stream(stream)


def _first_rows(
    tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> int | None:
    """How many rows a slice takes, if it takes the first ones."""
    if dim not in (0, -tensor.dim()) or start or step != 1:
        return None
    rows = int(tensor.shape[0])
    return rows if end is None else len(range(rows)[:end])


def rows_or_tensor(x: Tensor, reads: int) -> Tensor | TableRows:
    """What kernels read features from, of which `reads` rows are read in all."""
    return x.source(reads) if isinstance(x, LazyRows) and not _wants_gradient(x) else gathered(x)


def gathered(x: Tensor) -> Tensor:
    """The features as a plain tensor, through which gradients reach `x`."""
    if not isinstance(x, LazyRows):
        return x
    return x.clone() if _wants_gradient(x) else x.whole()


def _wants_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()
