"""Views: the same elements under other dimensions; the partitioned dimension moves along."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.arguments import SplitRowsError, not_implemented
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows, serves_chunks
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import chunk_rule, rule
from peergraph.fullgraph.tensor.row_copies import copied_rows, refuse_writes
from peergraph.fullgraph.tensor.unrecorded_views import memory_of_view

aten = torch.ops.aten


@rule(aten.view.default, aten._unsafe_view.default)
def view(x: PartitionedTensor, size: Sequence[int]) -> PartitionedTensor:
    """Rows may merge with the following dimensions, or with all leading ones, and split again."""
    local, dim = x._local, x.partitioned_dim
    if x.row_layout.local_count < 2:  # one row or none can be viewed as those of others cannot
        torch.empty_strided(x.shape, x.stride(), device="meta").view(size)
    layout, dim, local_size = view_of_rows(x.row_layout, local.shape, dim, size)
    return wrap(local.view(local_size), layout, dim)


@rule(aten._reshape_alias.default)
def reshape(x: PartitionedTensor, size: Sequence[int], stride: object = None) -> PartitionedTensor:
    """As :func:`view`; copies where it must."""
    layout, dim, local_size = view_of_rows(x.row_layout, x._local.shape, x.partitioned_dim, size)
    return x.with_rows(x._local.reshape(local_size), dim, layout)


@chunk_rule(Tensor.view, Tensor.reshape, torch.reshape)
def _view_of_chunk(x: Any, *sizes: Any, **kwargs: Any) -> PartitionedTensor | None:
    size = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if type(x) is not ChunkRows or kwargs or not size:
        return None
    return reshape(x, size) if all(type(part) is int for part in size) else None  # type: ignore[arg-type]


@chunk_rule(Tensor.flatten, torch.flatten)
def _flatten_of_chunk(x: Any, start_dim: int = 0, end_dim: int = -1) -> ChunkRows | None:
    if type(x) is not ChunkRows or x.partitioned_dim or start_dim % x.dim() == 0:
        return None
    return x.with_rows(x.rows.flatten(start_dim, end_dim))


def view_of_rows(
    layout: RowLayout, local_shape: Sequence[int], dim: int, size: Sequence[int]
) -> tuple[RowLayout, int, list[int]]:
    """Returns layout, partitioned dimension and local shape of a view with global shape `size`."""
    before, after = prod(local_shape[:dim]), prod(local_shape[dim + 1 :])
    whole, size = layout, list(size)
    if -1 in size:
        others = -prod(size)
        total = before * layout.size * after
        size[size.index(-1)] = total // others if others else 0
    if layout.repeats > 1 and layout.parent is not None:
        after *= layout.repeats
        layout = layout.parent
    if layout.tiles > 1 and layout.parent is not None:
        before *= layout.tiles
        layout = layout.parent
    passed = 1
    for place, rows in enumerate(size):
        rows_layout = None
        if passed == before and layout.size and rows and rows % layout.size == 0:
            repeats = rows // layout.size
            if after % repeats == 0 and prod(size[place + 1 :]) * repeats == after:
                rows_layout = layout.repeat(repeats)
        elif passed == before and layout.size == rows == 0:
            rows_layout = layout
        elif passed < before and layout.size and rows % layout.size == 0:
            tiles = rows // layout.size
            if tiles * passed == before and prod(size[place + 1 :]) == after:
                rows_layout = layout.tile(tiles)
        if rows_layout is not None:
            local_size = size.copy()
            local_size[place] = rows_layout.local_count
            return rows_layout, place, local_size
        passed *= rows
    reason = f"shape {tuple(size)} splits the {layout.size} partitioned rows otherwise"
    if whole.by_ids and dim == 0:
        raise SplitRowsError(reason, whole, tuple(size))
    not_implemented("view", reason)


@serves_chunks(Tensor.t, torch.t)
@rule(aten.t.default)
def t(x: PartitionedTensor) -> PartitionedTensor:
    """The transpose of a matrix."""
    local = x._local.t()
    return x.with_rows(local, local.dim() - 1 - x.partitioned_dim)


@serves_chunks(Tensor.transpose, torch.transpose)
@rule(aten.transpose.int)
def transpose(x: PartitionedTensor, dim0: int, dim1: int) -> PartitionedTensor:
    """Two dimensions change places."""
    dims = x._local.dim()
    dim0, dim1, dim = dim0 % dims, dim1 % dims, x.partitioned_dim
    moved = dim1 if dim == dim0 else dim0 if dim == dim1 else dim
    return x.with_rows(x._local.transpose(dim0, dim1), moved)


@rule(aten.permute.default)
def permute(x: PartitionedTensor, dims: Sequence[int]) -> PartitionedTensor:
    """Dimensions in another order."""
    count = x._local.dim()
    places = [dim % count for dim in dims]
    return wrap(x._local.permute(places), x.row_layout, places.index(x.partitioned_dim))


@serves_chunks(Tensor.unsqueeze, torch.unsqueeze)
@rule(aten.unsqueeze.default)
def unsqueeze(x: PartitionedTensor, dim: int) -> PartitionedTensor:
    """A new dimension of size one."""
    dim %= x._local.dim() + 1
    return x.with_rows(x._local.unsqueeze(dim), x.partitioned_dim + (dim <= x.partitioned_dim))


@serves_chunks(Tensor.squeeze, torch.squeeze)
@rule(aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default)
def squeeze(x: PartitionedTensor, dim: int | Sequence[int] | None = None) -> PartitionedTensor:
    """Without dimensions of size one."""
    shape = x._local.shape
    count = len(shape)
    dims = range(count) if dim is None else [dim] if isinstance(dim, int) else dim
    removed = [place % count for place in dims]
    if x.partitioned_dim in removed and x.row_layout.size == 1:
        not_implemented("squeeze", "it removes the partitioned dimension")
    removed = [d for d in removed if shape[d] == 1 and d != x.partitioned_dim]
    moved = x.partitioned_dim - sum(d < x.partitioned_dim for d in removed)
    return x.with_rows(x._local.squeeze(removed), moved)


@rule(aten._conj.default)
def conjugate(x: PartitionedTensor) -> PartitionedTensor:
    """The conjugate of complex numbers, as a copy: rules read the memory of rows as it is."""
    copy = x._local.conj_physical()
    reason = "x.conj() is a view of the tensor that is changed; use torch.conj_physical(x)"
    refuse_writes(x._local, copy, reason)
    return wrap(copy, x.row_layout, x.partitioned_dim)


@rule(aten.view_as_real.default)
def view_as_real(x: PartitionedTensor) -> PartitionedTensor:
    """Real and imaginary parts in a last dimension."""
    return wrap(aten.view_as_real(x._local), x.row_layout, x.partitioned_dim)


@rule(aten.view_as_complex.default)
def view_as_complex(x: PartitionedTensor) -> PartitionedTensor:
    """Complex numbers of the two columns of a last dimension."""
    if x.partitioned_dim == x.ndim - 1:
        not_implemented(aten.view_as_complex.default, "parts of a number are different rows")
    return wrap(aten.view_as_complex(x._local), x.row_layout, x.partitioned_dim)


@rule(aten.expand.default)
def expand(x: PartitionedTensor, size: Sequence[int], *, implicit: bool = False) -> Any:
    """Dimensions of size one, and new leading ones, repeat in the same memory."""
    dim = x.partitioned_dim + len(size) - x._local.dim()
    if size[dim] not in (-1, x.row_layout.size):
        not_implemented("expand", "it expands the partitioned dimension")
    local_size = list(size)
    local_size[dim] = x.row_layout.local_count
    return wrap(x._local.expand(local_size), x.row_layout, dim)


def without_dim(x: PartitionedTensor, dim: int, name: str) -> tuple[int, int]:
    """Returns `dim`, not negative, and the partitioned dimension of results without `dim`."""
    dim %= x._local.dim()
    if dim == x.partitioned_dim:
        not_implemented(name, "it runs along the partitioned dimension")
    return dim, x.partitioned_dim - (dim < x.partitioned_dim)


@serves_chunks(Tensor.select, torch.select)
@rule(aten.select.int)
def select(x: PartitionedTensor, dim: int, index: int) -> PartitionedTensor:
    """One column."""
    dim, moved = without_dim(x, dim, "select")
    return x.with_rows(x._local.select(dim, index), moved)


@rule(aten.slice.Tensor)
def slice_columns(
    x: PartitionedTensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> PartitionedTensor:
    """A range of columns, or of rows as a copy that follows the tensor."""
    if dim % x._local.dim() == x.partitioned_dim:
        if slice(start, end, step).indices(x.row_layout.size) == (0, x.row_layout.size, 1):
            return wrap(x._local.view(x._local.shape), x.row_layout, x.partitioned_dim)
        first = local_first = 0
        for part in x.row_layout.parts:  # of concatenated rows
            if slice(start, end, step).indices(x.row_layout.size) == (first, first + part.size, 1):
                local = x._local.narrow(dim, local_first, part.local_count)
                return wrap(local, part, x.partitioned_dim)
            first, local_first = first + part.size, local_first + part.local_count
        layout = x.row_layout.select_range(slice(start, end, step))
        assert layout.parent_rows is not None
        place = x.partitioned_dim
        strides, shape = list(x.stride()), list(x.shape)
        strides[place], shape[place] = strides[place] * step, layout.size
        with memory_of_view(x._local):
            copy = copied_rows(x._local, place, layout.parent_rows, shape, strides)
        return wrap(copy, layout, place)
    return wrap(aten.slice.Tensor(x._local, dim, start, end, step), x.row_layout, x.partitioned_dim)


@rule(aten.split.Tensor, aten.split_with_sizes.default)
def split(x: PartitionedTensor, sizes: Any, dim: int = 0) -> list[PartitionedTensor]:
    """Ranges of columns."""
    without_dim(x, dim, "split")
    return [
        wrap(part, x.row_layout, x.partitioned_dim) for part in aten.split(x._local, sizes, dim)
    ]


@rule(aten.unbind.int)
def unbind(x: PartitionedTensor, dim: int = 0) -> list[PartitionedTensor]:
    """All columns."""
    dim, moved = without_dim(x, dim, "unbind")
    return [wrap(part, x.row_layout, moved) for part in x._local.unbind(dim)]


@rule(aten.slice_backward.default)
def slice_backward(
    grad: PartitionedTensor,
    input_sizes: Sequence[int],
    dim: int,
    start: int,
    end: int,
    step: int,
) -> PartitionedTensor:
    """The gradient of :func:`slice_columns`; of rows it is plain where their tensor is unknown."""
    if dim % len(input_sizes) == grad.partitioned_dim:
        place, layout = grad.partitioned_dim, grad.row_layout
        bounds = slice(start, end, step).indices(input_sizes[place])
        if bounds == (0, input_sizes[place], 1):
            return wrap(grad._local.clone(), layout, place)
        parent, rows = layout.parent, layout.parent_rows
        if layout.bounds != bounds or parent is None or parent.size != input_sizes[place]:
            full: Any = grad.full_tensor()
            rows_of_all: PartitionedTensor = aten.slice_backward.default(
                full, input_sizes, dim, start, end, step
            )
            return rows_of_all
        assert rows is not None
        shape = list(grad._local.shape)
        shape[place] = parent.local_count
        return wrap(
            grad._local.new_zeros(shape).index_copy_(place, rows, grad._local), parent, place
        )
    local_sizes = list(input_sizes)
    local_sizes[grad.partitioned_dim] = grad.row_layout.local_count
    local = aten.slice_backward.default(grad._local, local_sizes, dim, start, end, step)
    return wrap(local, grad.row_layout, grad.partitioned_dim)


@rule(aten.select_backward.default)
def select_backward(
    grad: PartitionedTensor, input_sizes: Sequence[int], dim: int, index: int
) -> PartitionedTensor:
    """The gradient of :func:`select`."""
    local_sizes = list(input_sizes)
    dim %= len(local_sizes)
    moved = grad.partitioned_dim + (dim <= grad.partitioned_dim)
    local_sizes[moved] = grad.row_layout.local_count
    local = aten.select_backward.default(grad._local, local_sizes, dim, index)
    return wrap(local, grad.row_layout, moved)


@rule(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> PartitionedTensor:
    """Columns side by side."""
    along_rows = _cat_rows(tensors, dim)
    if along_rows is not None:
        return along_rows
    locals_, first, dim = _locals(tensors, "cat", dim, 0)
    if dim == first.partitioned_dim:
        not_implemented("cat", "a plain tensor follows partitioned rows")
    return wrap(torch.cat(locals_, dim), first.row_layout, first.partitioned_dim)


def _cat_rows(tensors: Sequence[Tensor], dim: int) -> PartitionedTensor | None:
    """Rows after rows, where all tensors are partitioned along `dim`; else None."""
    parts = [tensor for tensor in tensors if type(tensor) is PartitionedTensor]
    dims = parts[0]._local.dim()
    if len(parts) < len(tensors) or any(p.partitioned_dim != dim % dims for p in parts):
        return None
    layout = parts[0].row_layout
    for part in parts[1:]:
        layout = layout.concatenate(part.row_layout)
    return wrap(torch.cat([part._local for part in parts], dim), layout, dim % dims)


@rule(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> PartitionedTensor:
    """Tensors along a new dimension."""
    locals_, first, dim = _locals(tensors, "stack", dim, 1)
    moved = first.partitioned_dim + (dim <= first.partitioned_dim)
    return wrap(torch.stack(locals_, dim), first.row_layout, moved)


def _locals(
    tensors: Sequence[Tensor], name: str, dim: int, new_dims: int
) -> tuple[list[Tensor], PartitionedTensor, int]:
    from peergraph.fullgraph.tensor.pointwise import localize

    first, locals_ = localize(name, tuple(tensors))
    return locals_, first, dim % (first._local.dim() + new_dims)


@rule(aten.repeat.default)
def repeat(x: PartitionedTensor, repeats: Sequence[int]) -> PartitionedTensor:
    """Repeats columns, as `Tensor.repeat` does."""
    dim = x.partitioned_dim + len(repeats) - x._local.dim()
    if repeats[dim] != 1:
        not_implemented("repeat", "it repeats rows")
    return wrap(x._local.repeat(*repeats), x.row_layout, dim)


@rule(aten.constant_pad_nd.default)
def constant_pad(x: PartitionedTensor, pad: Sequence[int], value: float = 0) -> PartitionedTensor:
    """Further columns of a constant."""
    place = 2 * (x._local.dim() - 1 - x.partitioned_dim)
    if any(pad[place : place + 2]):
        not_implemented("pad", "it pads rows")
    return wrap(aten.constant_pad_nd.default(x._local, pad, value), x.row_layout, x.partitioned_dim)
