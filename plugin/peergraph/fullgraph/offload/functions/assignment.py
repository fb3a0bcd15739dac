"""Rows that are written into offloaded tensors, or joined with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.gathering import on_device
from peergraph.fullgraph.offload.functions.recording import record, refuse
from peergraph.fullgraph.offload.functions.selection import (
    local_mask,
    rows_in_use,
    rows_of,
    writer_of,
)
from peergraph.fullgraph.offload.programs.selected_rows import Selection, spread_rows
from peergraph.fullgraph.offload.tensor.offloaded_function import linear_map, without_inference
from peergraph.fullgraph.offload.tensor.offloaded_tensor import OffloadedTensor, make_shell
from peergraph.fullgraph.tensor.arguments import require_same_rows
from peergraph.fullgraph.tensor.assignment import put_at_elements, values_for_rows
from peergraph.fullgraph.tensor.conversions import from_local, take_rows
from peergraph.fullgraph.tensor.index import parse_index
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.registry import FUNCTION_RULES, method, offloaded_rule
from peergraph.fullgraph.tensor.selection import index_on_device, selection, take


@method("offloaded assignment")
def put(x: OffloadedTensor, index: Any, value: Any, accumulate: bool = False) -> None:
    """Writes rows by mask, ids or range in place, or columns of all rows; or adds values there.

    The values of selected rows are on the device, and so they stay until the rows are computed,
    which may be in a mode with gradients: that takes no tensors of inference mode.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            put(x, index, value, accumulate)
        return
    index, value = without_inference(index), without_inference(value)
    parsed = parse_index(index, x.shape)
    first: Any = parsed.advanced[0] if parsed.is_alone else None
    of_elements = isinstance(first, PartitionedTensor) and first.dtype == torch.bool
    if of_elements and first.ndim > 1 and set(map(str, parsed.basic)) == {str(slice(None))}:
        put_at_elements(x, first, 0, value, accumulate)
        return
    index = index_on_device(index)
    parsed = parse_index(index, x.shape)
    place = parsed.place_of(x.partitioned_dim)
    rows = parsed.basic[place]
    named = None if isinstance(rows, int) else parsed.at(parsed.dim_of_view(place))
    if rows == slice(None) and named is None:
        if accumulate:
            refuse("index_put_", "values are added to columns")
        is_plain = isinstance(value, Tensor) and not isinstance(value, PartitionedTensor)
        if is_plain and parsed.is_basic:  # their gradients gather rows of all chunks
            from_end = parsed.dim_of_view(place) - len(parsed.advanced)
            value = values_for_rows(value, x.row_layout, from_end)
        record(Tensor.__setitem__, (x, index, value), {})
        return
    if not x._content.is_storable:
        refuse("assignment", "rows are written into a view of which they are no rows")
    inner: Any = slice(None)
    columns = parsed.with_rows(place, slice(None))
    are_whole = all(isinstance(part, slice) and part == slice(None) for part in columns)
    if named is None:
        chosen = x.row_layout.select_range(slice(rows, rows + 1) if isinstance(rows, int) else rows)
        inner = 0 if isinstance(rows, int) else inner
    elif isinstance(named, PartitionedTensor) and named.dtype != torch.bool:
        refuse("assignment", "rows are written by partitioned ids")
    elif named.dtype == torch.bool and named.ndim > 1:
        refuse("assignment", "a mask of elements is plain, or has other indices beside it")
    elif named.dtype == torch.bool or (
        # Rows that are read before they are written must be read once, as their gradients are.
        named.ndim == 1 and parsed.is_alone and are_whole and not accumulate
    ):
        chosen = selection(x.row_layout, named)
        inner = torch.arange(chosen.size, device="cpu")
    else:
        distinct, inner = torch.unique(x.row_layout.positive_ids(named), return_inverse=True)
        chosen = x.row_layout.select_ids(distinct)
    is_list = isinstance(inner, slice) or (isinstance(inner, Tensor) and inner.ndim == 1)
    is_list = is_list and (named is None or (parsed.is_alone and len(inner) == chosen.size))
    if are_whole and is_list and not accumulate:
        _write(x, chosen, value)
        return
    # The rows are read, changed, and written as a whole.
    written = (on_device(x) if chosen is x.row_layout else rows_of(x, chosen)).clone()
    if accumulate:
        # Those of index_put_ are ids and masks; the dimensions behind them are whole.
        parts = parsed.with_rows(place, inner)
        written.index_put_([part for part in parts if isinstance(part, Tensor)], value, True)
    else:
        written[parsed.with_rows(place, inner)] = value
    _write(x, chosen, written)


@offloaded_rule(torch.cat, torch.concat, torch.concatenate)
def cat(tensors: Sequence[Tensor], dim: int = 0, **kwargs: Any) -> Tensor:
    """As `torch.cat`. To be joined along the rows, offloaded tensors with one value a row are
    computed and moved to the device; wider ones raise NotImplementedError.
    """
    rows = [x for x in tensors if isinstance(x, OffloadedTensor)]
    along_rows = rows and dim % rows[0].dim() == rows[0].partitioned_dim
    if not along_rows or "out" in kwargs:
        joined: Tensor = record(torch.cat, (tensors, dim), kwargs)
        return joined
    if any(x.numel() > x.row_layout.size for x in rows):
        refuse("cat", "wide rows are joined with the rows of another tensor")
    return torch.cat([on_device(x) if isinstance(x, OffloadedTensor) else x for x in tensors], dim)


@offloaded_rule(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(x: OffloadedTensor, value: Tensor) -> None:
    """Refuses ``x.data = value``."""
    raise NotImplementedError(
        "x.data = values, of rows that are larger than GPU memory: make a new tensor, "
        "x = values.detach().requires_grad_()"
    )


def _then_written(function: Any) -> Any:
    """Returns the rule of a function that changes a tensor on the device in place.

    A range of rows of an offloaded tensor is written to it, with gradients; without, if it is
    changed through ``.data`` or ``detach()``.
    """

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        write = writer_of(x)
        if write is None or not torch.is_grad_enabled():
            with torch._C.DisableTorchFunctionSubclass():
                return function(x, *args, **kwargs)
        selected = write.selected()
        if selected is None:
            refuse("assignment", "a part of a range of rows is changed in place: x[rows] = value")
        is_detached = x is not selected and write.x.requires_grad and not x.requires_grad
        if is_detached and not any(_requires_grad(each) for each in (*args, *kwargs.values())):
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                return function(x, *args, **kwargs)
        write.is_suspended = True
        try:
            with torch._C.DisableTorchFunctionSubclass():
                result = function(x, *args, **kwargs)
        finally:
            write.is_suspended = False
        write.x[write.rows] = selected
        return result

    return run


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_IN_PLACE = [name for name in dir(Tensor) if name[0] != "_" and name[-1] == "_"]
for _name in (*_IN_PLACE, *(f"__i{name}__" for name in _OPERATORS)):
    if _name != "requires_grad_" and hasattr(Tensor, _name):
        _function = getattr(Tensor, _name)
        FUNCTION_RULES.setdefault(_function, _then_written(_function))


def _write(x: OffloadedTensor, chosen: RowLayout, value: Any) -> None:
    """Writes values of selected rows in place."""
    followers = rows_in_use(x, value, chosen)
    x.copy_(written_rows(x, chosen, value))
    for memory in followers:
        x.note_alias(memory)


@method("written rows")
def written_rows(x: OffloadedTensor, chosen: RowLayout, value: Any) -> OffloadedTensor:
    """Returns a copy of a tensor in which selected rows have other values."""
    if isinstance(value, OffloadedTensor):
        if chosen.same_rows(value.row_layout) and chosen.same_rows(x.row_layout):  # of all rows
            return torch.zeros_like(x.detach()).copy_(value)  # type: ignore[return-value]
        refuse("assignment", "the values of selected rows are offloaded")
    if isinstance(value, Tensor) and not isinstance(value, PartitionedTensor):
        value = values_for_rows(value.to(x.device, x.dtype), chosen, -x.dim())
    if isinstance(value, PartitionedTensor):
        require_same_rows("assignment", chosen, value.row_layout)
        value = _spread(value.to(x.dtype).expand(-1, *x.shape[1:]), chosen, x)
    if chosen is x.row_layout:
        mask = torch.ones(x.row_layout.local_count, dtype=torch.bool, device=x.device)
    else:
        mask = local_mask(chosen)
    written = from_local(mask, x.row_layout).view([-1, *[1] * (x.dim() - 1)])
    result: OffloadedTensor = torch.where(written, value, x)  # type: ignore[assignment]
    return result


def _spread(value: Tensor, chosen: RowLayout, x: OffloadedTensor) -> OffloadedTensor:
    """Returns selected rows on the device among zeros in the place of other rows. Collective."""
    space, rows = x._content.space, chosen.parent_rows
    layout = space.row_layout

    def spread(value: Any) -> Tensor:
        local = value._local
        if chosen is layout:
            mask = torch.ones(len(local), dtype=torch.bool, device=local.device)
        else:
            assert rows is not None
            mask = local_mask(chosen)
            by_row = local.new_empty((len(mask), *local.shape[1:]))
            # Of rows that are named twice, one value stays, as in torch.
            local = by_row.index_copy_(0, rows, local)[mask]
        return spread_rows(local, Selection.of(space, layout.select_mask(mask)))

    @torch.no_grad()
    def select(grad: Tensor) -> Tensor:
        if not isinstance(grad, OffloadedTensor):
            grad = take_rows(grad, layout, 0)
        return take(grad, chosen)

    result: OffloadedTensor = linear_map(value, spread, select)
    # Gradients do not flow through the record.
    result._cell.identity = result if result.requires_grad else make_shell(result._content)
    return result
