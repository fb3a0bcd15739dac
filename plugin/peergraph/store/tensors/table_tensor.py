"""Tensors over tables of the store, for features and attributes. Selecting rows gathers them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from peergraph.memory import Table
from peergraph.memory.table.id_list import as_wide_as_rows, integers
from peergraph.store.input.source import EdgeType, NodeType
from peergraph.store.store import Store
from peergraph.store.tensors.store_tensor import StoreTensor, implements, materialize_all

aten = torch.ops.aten


class TableTensor(StoreTensor):
    """A node table (rows by node id) or edge table (rows by edge id) as a tensor ``[rows, ...]``.

    Reads are one-sided. Ids may be on the CPU or on the store's device; results are on this
    tensor's device. An id out of range raises ``IndexError`` (on CUDA at a later operation of the
    store).

    ``x[ids] = values``, ``x[ids] += values`` and ``x[:] = values`` write rows for all ranks. They
    write whole rows, and no gradients pass through them.
    """

    owner: NodeType | EdgeType
    table_name: str
    table: Table

    def __new__(
        cls,
        store: Store,
        owner: NodeType | EdgeType,
        name: str,
        device: torch.device | None = None,
    ) -> Self:
        """Args:
        store: the store.
        owner: the node type (``str``) or edge type (``tuple``) of the table.
        name: the table's name; ``KeyError`` if the store has none of that name.
        device: the device of the tensor and of results; default: the store's.
        """
        lookup: Any = store.edge_table if isinstance(owner, tuple) else store.node_table
        table = lookup(name, owner)
        tensor = cls._wrap(store, table.shape, table.dtype, device)
        tensor.owner, tensor.table_name, tensor.table = owner, name, table
        return tensor

    def _arguments(self) -> tuple[Any, ...]:
        return self.store, self.owner, self.table_name, self.device

    def materialize(self, device: torch.device | None = None) -> Tensor:
        """Returns all rows in the user's order as a plain tensor. Synchronises, unless the result
        is on the store's GPU.
        """
        target = self.device if device is None else device
        if target.type == "cuda" and target == self.table.device:
            return self.table.gather(torch.arange(self.size(0), device=target))
        return self.table.read().to(target)

    def rows(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the rows ``ids`` (int32 or int64, any shape) on this tensor's device.

        Asynchronous if this is the store's GPU.
        """
        if out is None and self.device.type == "cpu" and self.table.device.type == "cuda":
            out = torch.empty((*ids.shape, *self.shape[1:]), dtype=self.dtype, device="cpu")
        rows = self.table.gather(ids, out=out)
        return rows if out is not None else rows.to(self.device)

    def row_ids(self, key: Any) -> Tensor | None:
        """Returns the ids of the rows that ``key`` selects; ``None`` for other kinds of keys.

        Args:
            key: an int, a slice, a sequence of ints, a tensor or array of ints (of any shape;
                negative ints count from the end), or a mask with one bool per row.
        """
        rows = self.size(0)
        if isinstance(key, slice):
            return _range(key, rows, self.device)
        if not isinstance(key, Tensor):
            key = torch.as_tensor(key, device="cpu")
        if key.dtype == torch.bool:
            if key.dim() != 1:
                return None
            if key.numel() != rows:
                raise IndexError(f"a mask over {rows} rows must have as many, got {key.numel()}")
            ids: Tensor = key.nonzero().view(-1)
            return ids
        key = integers(key)
        if key.dtype not in (torch.int32, torch.int64):
            return None
        key = as_wide_as_rows(key, rows)
        return torch.where(key < 0, key + rows, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes rows for all ranks. One-sided. Columns cannot be selected."""
        key = materialize_all(key)
        if key is Ellipsis or (isinstance(key, slice) and key == slice(None)):
            self._refuse_gradients(value)
            self.copy_(value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu"))
            return
        if isinstance(key, tuple) or key is None:
            raise NotImplementedError(f"x[{key!r}] = values: a shared tensor is written by rows")
        ids = self.row_ids(key)
        if ids is None:
            raise NotImplementedError(f"x[{key!r}] = values: expected row ids or a mask over rows")
        self.write(ids, value)

    def write(self, ids: Tensor, value: Any) -> None:
        """Sets the rows ``ids`` to ``value``, which is broadcast to ``[*ids.shape, ...]``.

        Raises:
            RuntimeError: ``copy.deepcopy`` made this tensor, or gradients would be lost.
        """
        self.refuse_if_read_only()
        self._refuse_gradients(value)
        value = torch.as_tensor(materialize_all(value), dtype=self.dtype, device=self.device)
        self.table.scatter(ids, value.expand((*ids.shape, *self.shape[1:])))

    def _refuse_gradients(self, value: Any) -> None:
        has_gradient = self.requires_grad or (isinstance(value, Tensor) and value.requires_grad)
        if has_gradient and torch.is_grad_enabled():
            raise RuntimeError(
                f"gradients do not go through rows that are written to {self!r}: write "
                "values.detach(), or within torch.no_grad()"
            )

    def _source(self) -> str:
        return f"{self.table_name!r} of {self.owner!r}"


def _range(key: slice, rows: int, device: torch.device) -> Tensor:
    start, stop, step = key.indices(rows)
    if step < 1:
        raise ValueError(f"the step of a slice must be greater than zero, got {step}")
    return torch.arange(start, max(start, stop), step, device=device)


def _along_rows(tensor: Any, dim: int) -> bool:
    return isinstance(tensor, TableTensor) and dim in (0, -tensor.dim())


@implements(aten.index_select.default)
def _index_select(tensor: Any, dim: int, index: Tensor) -> Any:
    if not _along_rows(tensor, dim):
        return NotImplemented
    return tensor.rows(materialize_all(index).reshape(-1))


@implements(aten.index_select.out)
def _index_select_out(tensor: Any, dim: int, index: Tensor, *, out: Tensor) -> Any:
    if not _along_rows(tensor, dim) or isinstance(out, StoreTensor):
        return NotImplemented
    ids = materialize_all(index).reshape(-1)
    shape = (ids.numel(), *tensor.shape[1:])
    fits = out.shape == shape and out.dtype == tensor.dtype and out.device == tensor.device
    if fits and out.is_contiguous():
        return tensor.rows(ids, out=out)
    return torch.index_select(
        tensor.rows(ids), 0, torch.arange(ids.numel(), device=tensor.device), out=out
    )


@implements(aten.index.Tensor)
def _index(tensor: Any, indices: list[Tensor | None]) -> Any:
    if not isinstance(tensor, TableTensor) or len(indices) == 0 or indices[0] is None:
        return NotImplemented
    if any(index is not None for index in indices[1:]):
        return NotImplemented
    ids = tensor.row_ids(materialize_all(indices[0]))
    if ids is None:
        return NotImplemented
    return tensor.rows(ids)


@implements(aten.slice.Tensor)
def _slice(
    tensor: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    if not _along_rows(tensor, dim):
        return NotImplemented
    return tensor.rows(_range(slice(start, end, step), tensor.size(0), tensor.device))


@implements(aten.select.int)
def _select(tensor: Any, dim: int, index: int) -> Any:
    if not _along_rows(tensor, dim):
        return NotImplemented
    rows = tensor.size(0)
    return tensor.rows(torch.tensor([index + rows if index < 0 else index], device="cpu"))[0]


@implements(aten.index_put_.default)
def _index_put_(
    tensor: Any, indices: list[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    if not isinstance(tensor, TableTensor) or accumulate or len(indices) != 1:
        return NotImplemented
    ids = tensor.row_ids(materialize_all(indices[0]))
    if ids is None:
        return NotImplemented
    tensor.write(ids, values)
    return tensor


@implements(aten.copy_.default)
def _copy_(tensor: Any, source: Tensor, non_blocking: bool = False) -> Any:
    if not isinstance(tensor, TableTensor):
        return NotImplemented
    if isinstance(source, TableTensor) and source.table is tensor.table:
        # AveragedModel copies buffers of a model to themselves.
        return tensor
    tensor.refuse_if_read_only()
    source = materialize_all(source).to(dtype=tensor.dtype)
    if source.device != tensor.device:
        source = source.cpu()
    tensor.table.load(source.expand(tensor.shape))
    return tensor
