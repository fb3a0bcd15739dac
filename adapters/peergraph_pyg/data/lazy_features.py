"""`LazyRows`: features of a batch that stay in the store until an operation needs a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import Self

from peergraph.memory import DistributedTable, EncodedRows, NarrowTable, Table, TableRows
from peergraph.store import StoragelessTensor, TableTensor, dispatch_mode

from ..compat import can_alias, is_in_place

aten = torch.ops.aten

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


class LazyTable(TableTensor):
    """A shared tensor whose selections of rows by ids are :class:`LazyRows`."""

    @classmethod
    def of(cls, tensor: TableTensor) -> Self:
        """Returns a lazy tensor over the table of `tensor`."""
        return cls(tensor.store, tensor.owner, tensor.table_name, tensor.device)

    def rows(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the rows ``ids``; gathered only for an ``out`` or for another device, or where
        rows are split over machines.
        """
        in_place = out is None and ids.dim() == 1 and self.device == self.table.device
        if not in_place or isinstance(self.table, DistributedTable):
            return super().rows(ids, out)
        return LazyRows(TableRows(self.table, ids))


class StoredTable(LazyTable):
    """A lazy tensor whose rows are gathered when they are selected, as they are stored.

    Rows without narrow storage are not gathered then.
    """

    @property
    def tables(self) -> list[Table]:
        """The tables whose rows are gathered."""
        table = self.table
        return table.encoded_tables if isinstance(table, NarrowTable) else []

    def selected(self, ids: Tensor, rows: Sequence[Tensor]) -> Tensor:
        """Returns the rows ``ids``, of which those of :attr:`tables` are gathered already."""
        lazy, table = TableRows(self.table, ids), self.table
        encoded = EncodedRows(table.codec, *rows) if isinstance(table, NarrowTable) else None
        return LazyRows(lazy, _Values(lazy, encoded=encoded))

    def rows(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the rows ``ids``, gathered but not decoded."""
        rows = super().rows(ids, out)
        if type(rows) is LazyRows:
            rows.encoded()
        return rows


class _Values:
    """The matrix of rows after they are gathered; all handles of a tensor share it.

    Args:
        rows: rows of a table.
        base: values whose first rows these are; a write to one changes the other.
        encoded: the rows as they are stored, if they are gathered.
    """

    def __init__(
        self,
        rows: TableRows,
        base: _Values | None = None,
        encoded: EncodedRows | None = None,
    ) -> None:
        self.rows = rows
        self.base = base
        self._tensor: Tensor | None = None
        self._encoded = encoded

    def encoded(self) -> EncodedRows | None:
        """Returns the rows as they are stored, gathered at the first call; None where somebody has
        the values, which may have changed, or the storage is not narrow.
        """
        if self.matrix_if_gathered() is not None:
            return None
        of_base = None if self.base is None else self.base._encoded
        if of_base is not None:
            return of_base.first(self.rows.shape[0])
        if self._encoded is None:
            with torch.inference_mode(False):
                self._encoded = self.rows.gather_encoded()
        return self._encoded

    def rows_in(self, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        """Returns the rows in a range; gathers no others."""
        values = self.matrix_if_gathered()
        if values is not None:
            return values[begin:end].to(dtype)
        if self._encoded is not None:
            return self._encoded.select(slice(begin, end), dtype)
        return TableRows(self.rows.table, self.rows.ids[begin:end]).gather().to(dtype)

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows have been gathered, decoded or as they are stored."""
        is_here = self._tensor is not None or self._encoded is not None
        return is_here or (self.base is not None and self.base.is_in_memory)

    def tensors(self) -> list[Tensor]:
        """Returns the tensors that hold gathered rows."""
        values, encoded = self.matrix_if_gathered(), self._encoded
        return ([] if values is None else [values]) + ([] if encoded is None else encoded.tensors())

    def matrix_if_gathered(self) -> Tensor | None:
        """Returns the matrix if the rows were gathered, else None."""
        of_base = None if self.base is None else self.base.matrix_if_gathered()
        return self._tensor if of_base is None else of_base[: self.rows.shape[0]]

    def materialize(self) -> Tensor:
        """Returns the matrix; the first call gathers these rows, not those of the base."""
        values = self.matrix_if_gathered()
        if values is None:
            # A tensor made in inference mode could not take part in autograd later.
            encoded = self._encoded
            with torch.inference_mode(False):
                if encoded is None:
                    values = self._tensor = self.rows.gather()
                else:
                    values = self._tensor = encoded.decode()
        return values

    def shared(self) -> Tensor:
        """Returns the matrix as a view of the base's matrix, so that both see writes."""
        return self.materialize() if self.base is None else self.base.shared()[: self.rows.shape[0]]


class LazyRows(StoragelessTensor):
    """Rows of a table as a tensor ``[rows, ...]`` that the first operation on it gathers.

    Size, dtype and device are known before. The first rows, ``x[:n]``, are lazy as well. The values
    are kept once they are gathered, and layers use them; in-place operations change the values,
    also through views and ``x.numpy()``, and not the table. Operations that change the shape in
    place raise ``NotImplementedError``. Pickling and deep copies give a plain tensor.
    """

    table_rows: TableRows
    _matrix: _Values

    def __new__(cls, rows: TableRows, values: _Values | None = None) -> Self:
        """Args:
        rows: rows of a table.
        values: the values of the rows, if another tensor shares them.
        """
        tensor = cls._make(rows.shape, rows.dtype, rows.device)
        tensor.table_rows = rows
        tensor._matrix = _Values(rows) if values is None else values
        return tensor

    @property
    def is_gathered(self) -> bool:
        """Whether the rows have been gathered and decoded."""
        return self._matrix.matrix_if_gathered() is not None

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows have been gathered, decoded or as they are stored."""
        return self._matrix.is_in_memory

    def materialize(self) -> Tensor:
        """Returns the rows as a plain tensor, gathered at the first call; asynchronous on CUDA."""
        return self._matrix.materialize()

    def source(self, reads: int) -> Tensor | TableRows:
        """Returns the table or the gathered rows, whichever a kernel should read `reads` rows
        from.
        """
        if self.is_gathered or not self.table_rows.pays_to_read(reads):
            return self.materialize()
        return self.table_rows

    def encoded(self) -> EncodedRows | None:
        """Returns the rows as they are stored, gathered at the first call and then kept.

        None where the rows have been gathered as values, or their storage is not narrow.
        """
        return self._matrix.encoded()

    def rows_in(self, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        """Returns the rows in a range as a plain tensor without a gradient."""
        return self._matrix.rows_in(begin, end, dtype)

    def first(self, count: int) -> Tensor:
        """Returns the first `count` rows."""
        if self.is_gathered:
            return self.materialize()[:count]
        rows = self.table_rows.first(count)
        return LazyRows(rows, _Values(rows, self._matrix))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        tensor = args[0] if args else None
        if isinstance(tensor, LazyRows):
            if func in (aten.detach.default, aten.alias.default):
                return LazyRows(tensor.table_rows, tensor._matrix)
            if func is aten.slice.Tensor:
                count = _count_leading_rows(*args, **kwargs)
                if count is not None:
                    return tensor.first(count)
            if torch.Tag.inplace_view in func.tags:
                raise NotImplementedError(
                    f"{func} changes the shape of a LazyRows in place; work on x.clone()"
                )
        # Views may be written to later.
        aliases = can_alias(func)

        def matrix(lazy: LazyRows) -> Tensor:
            return lazy._matrix.shared() if aliases else lazy.materialize()

        args_, kwargs_ = tree_map_only(LazyRows, matrix, (args, kwargs))
        with dispatch_mode(func):
            result = func(*args_, **kwargs_)
        # An in-place operation returns its argument.
        return tensor if is_in_place(func) and result is args_[0] else result

    def __copy__(self) -> LazyRows:
        copied = LazyRows(self.table_rows, self._matrix)
        copied.requires_grad = self.requires_grad
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.materialize().clone().requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def reduce_to_process(self) -> Any:
        """Pickles the values as a plain tensor in memory that both processes map."""
        return reduce_tensor(self._values())  # type: ignore[no-untyped-call]

    def _values(self) -> Tensor:
        return self.materialize().detach().requires_grad_(self.requires_grad)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        state = "gathered" if self.is_gathered else "not gathered"
        return f"LazyRows({list(self.shape)}, {self.dtype}, device='{self.device}', {state})"

    def data_ptr(self) -> int:
        """As of the gathered rows."""
        return self._matrix.shared().data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        """Returns the gathered rows as a NumPy array that shares their memory."""
        return self._matrix.shared().numpy(force=force)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._matrix.shared().__dlpack__(**kwargs)

    def untyped_storage(self) -> torch.UntypedStorage:
        """As of the gathered rows."""
        return self._matrix.shared().untyped_storage()

    def _typed_storage(self) -> Any:
        return self._matrix.shared()._typed_storage()  # type: ignore[no-untyped-call]

    def pin_memory(self, device: Any = None) -> Tensor:
        """Returns the gathered rows, pinned."""
        return self.materialize().pin_memory()

    def record_stream(self, stream: torch.cuda.Stream) -> None:  # type: ignore[override]
        """Keeps the memory of ids, addresses and gathered rows until a stream has used them."""
        for tensor in (*self.table_rows.tensors(), *self._matrix.tensors()):
            tensor.record_stream(stream)


def _count_leading_rows(
    tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> int | None:
    """Returns n if a slice takes the first n rows of a tensor; None for other slices."""
    if dim not in (0, -tensor.dim()) or start or step != 1:
        return None
    rows = int(tensor.shape[0])
    return rows if end is None else len(range(rows)[:end])


def is_plain(value: Any) -> bool:
    """Returns whether `value` is a dense tensor of torch and of no subclass."""
    return type(value) in _PLAIN_TYPES and value.layout == torch.strided


def rows_or_tensor(x: Tensor, reads: int) -> Tensor | TableRows:
    """Returns the table or matrix of features from which a kernel should read `reads` rows in
    all.
    """
    return x.source(reads) if isinstance(x, LazyRows) and not _wants_gradient(x) else gathered(x)


def gathered(x: Tensor) -> Tensor:
    """Returns the features as a plain tensor that passes gradients on to `x`."""
    if not isinstance(x, LazyRows):
        return x
    return x.clone() if _wants_gradient(x) else x.materialize()


def _wants_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()
