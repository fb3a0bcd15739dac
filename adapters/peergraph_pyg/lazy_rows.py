"""Features of a batch that stay in the store until something needs them as a matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from peergraph.memory import TableRows
from peergraph.store import TableTensor, WithoutStorage

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


class _Kept:
    """The gathered rows, once they are; shared by all handles of a tensor."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None


class LazyRows(WithoutStorage):
    """Rows of a table as a tensor ``[rows, ...]`` that is gathered when first used as one.

    Size, dtype and device are real. The first rows, ``x[:n]``, are lazy as well. Once gathered the
    values are kept, and layers use those; in-place operations change them and not the table.
    Pickles as a plain tensor.
    """

    table_rows: TableRows
    _kept: _Kept

    def __new__(cls, rows: TableRows, values: _Kept | None = None) -> Self:
        """Args:
        rows: of a table.
        values: those of another handle of the same rows.
        """
        tensor: Self = Tensor._make_wrapper_subclass(
            cls, rows.shape, dtype=rows.dtype, device=rows.device
        )
        tensor.table_rows = rows
        tensor._kept = values or _Kept()
        return tensor

    @property
    def is_gathered(self) -> bool:
        """Whether there is a matrix of the rows by now."""
        return self._kept.tensor is not None

    def whole(self) -> Tensor:
        """The rows as a plain tensor, gathered at the first call; asynchronous on CUDA."""
        if self._kept.tensor is None:
            self._kept.tensor = self.table_rows.gather()
        return self._kept.tensor

    def source(self, reads: int) -> Tensor | TableRows:
        """What a kernel should read `reads` rows of: the table, or the gathered rows."""
        if self.is_gathered or not self.table_rows.pays_to_read(reads):
            return self.whole()
        return self.table_rows

    def first(self, count: int) -> Tensor:
        """The first rows."""
        if self.is_gathered:
            return self.whole()[:count]
        return LazyRows(self.table_rows.first(count))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        if isinstance(tensor, LazyRows):
            if func in (aten.detach.default, aten.alias.default):
                return LazyRows(tensor.table_rows, tensor._kept)
            count = _first_rows(func, *args) if not kwargs else None
            if count is not None:
                return tensor.first(count)
        args_, kwargs_ = tree_map_only(LazyRows, lambda lazy: lazy.whole(), (args, kwargs))
        result = func(*args_, **kwargs_)
        # What an in-place operation returns is its argument.
        return tensor if func._schema.name.endswith("_") and result is args_[0] else result

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.whole().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.whole().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        state = "gathered" if self.is_gathered else "not gathered"
        return f"LazyRows({list(self.shape)}, {self.dtype}, device='{self.device}', {state})"

    def data_ptr(self) -> int:
        """Of the gathered rows."""
        return self.whole().data_ptr()

    def pin_memory(self, device: Any = None) -> Tensor:
        """The gathered rows, pinned."""
        return self.whole().pin_memory()

    def record_stream(self, stream: torch.cuda.Stream) -> None:  # type: ignore[override]
        """Keeps ids, addresses and gathered rows until a stream has used them."""
        rows = self.table_rows
        for tensor in (rows.ids, rows._addresses, self._kept.tensor):
            if tensor is not None:
                tensor.record_stream(stream)


def _first_rows(
    func: Any, tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> int | None:
    """How many rows a slice takes, if it takes the first ones."""
    if func is not aten.slice.Tensor or dim not in (0, -tensor.dim()) or start or step != 1:
        return None
    rows = int(tensor.shape[0])
    return rows if end is None else len(range(rows)[:end])


def rows_or_tensor(x: Tensor, reads: int) -> Tensor | TableRows:
    """What kernels read features from, of which `reads` rows are read in all."""
    return x.source(reads) if isinstance(x, LazyRows) else x


def gathered(x: Tensor) -> Tensor:
    """The features as a plain tensor."""
    return x.whole() if isinstance(x, LazyRows) else x
