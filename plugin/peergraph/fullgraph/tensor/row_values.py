"""Values of all rows and where they are: counts, distinct values, places, buckets, the largest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.local_operands import sum_over_ranks
from peergraph.fullgraph.exchange.transport import reductions_of
from peergraph.fullgraph.tensor.arguments import (
    local_rows_of_plain,
    not_implemented,
    require_same_rows,
)
from peergraph.fullgraph.tensor.over_rows import extreme
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, run_as_is, wrap
from peergraph.fullgraph.tensor.registry import function_rule, rule

aten = torch.ops.aten


@function_rule(torch.bincount, Tensor.bincount)
def bincount(input: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    """As `torch.bincount` over all rows; plain. Either tensor may be partitioned, or both."""
    rows: Any = input if isinstance(input, PartitionedTensor) else weights
    layout = rows.row_layout

    def local_rows(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, PartitionedTensor):
            return local_rows_of_plain("bincount", tensor, layout, -1)
        require_same_rows("bincount", layout, tensor.row_layout)
        return tensor._local

    minlength = max(minlength, int(input.max()) + 1 if layout.size else 0)
    local_weights = None if weights is None else local_rows(weights)
    local = torch.bincount(local_rows(input), local_weights, minlength=minlength)
    if local_weights is not None and layout.size:
        # Without rows on this rank, torch counts in integers.
        local = local.to(torch.float32 if weights.dtype == torch.float32 else torch.float64)
    return reductions_of(layout.group).all_reduce(local)


@rule(aten.nonzero.default)
def nonzero(x: PartitionedTensor) -> Tensor:
    """The user's places that are not zero, in ascending order: plain ids, as torch returns them."""
    if x.partitioned_dim != 0:
        not_implemented("nonzero", "rows are not the first dimension")
    mine = x._local.nonzero()
    mine[:, 0] = x.row_layout.positions[mine[:, 0]]
    places = torch.cat(x.row_layout.group.all_gather(mine.cpu()))
    order = places[:, 0].sort(stable=True).indices  # all places in a row are of one rank, in order
    return places.t().index_select(1, order).to(x._local.device).t()  # each dimension's together


@function_rule(torch.unique, Tensor.unique)
def unique(
    input: PartitionedTensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct values of all rows, and their counts: plain; where each row's value is: rows."""
    if dim is not None:
        not_implemented("unique", "rows are compared with rows")
    local, group = input._local, input.row_layout.group
    mine, where, counts = torch.unique(local, return_inverse=True, return_counts=True)
    parts = group.all_gather((mine.cpu(), counts.cpu()))
    values, places = torch.unique(torch.cat([part for part, _ in parts]), return_inverse=True)
    results = [values.to(local.device)]
    if return_inverse:
        mine_among = places.split([len(part) for part, _ in parts])[group.rank].to(local.device)
        results.append(wrap(mine_among[where], input.row_layout, input.partitioned_dim))
    if return_counts:
        counts = torch.zeros(values.shape, dtype=torch.int64, device="cpu")
        counts.index_add_(0, places, torch.cat([part for _, part in parts]))
        results.append(counts.to(local.device))
    return tuple(results) if len(results) > 1 else results[0]


@rule(aten.histc.default)
def histc(x: PartitionedTensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """As `torch.histc` over all rows; plain."""
    if min == max and x.row_layout.size:
        dims = list(range(x._local.dim()))
        min, max = (float(extreme(x, dims, False, op)) for op in ("min", "max"))
    return reductions_of(x.row_layout.group).all_reduce(aten.histc(x._local, bins, min, max))


@rule(aten.bucketize.Tensor)
def bucketize(x: Tensor, boundaries: Tensor, **options: Any) -> PartitionedTensor:
    """As `torch.bucketize`, by plain boundaries."""
    return searchsorted(boundaries, x, **options)


@rule(aten.searchsorted.Tensor)
def searchsorted(sequence: Tensor, x: Tensor, **options: Any) -> PartitionedTensor:
    """As `torch.searchsorted`, in a plain sequence, or in that of the same row."""
    if options.get("sorter") is not None:
        not_implemented("searchsorted", "a sorter is given; sort the sequence before")
    if not isinstance(x, PartitionedTensor):
        not_implemented("searchsorted", "the sequence is partitioned; values are searched in it")
    if isinstance(sequence, PartitionedTensor):
        require_same_rows("searchsorted", x.row_layout, sequence.row_layout)
        of_rows = x.ndim == sequence.ndim and x.partitioned_dim == sequence.partitioned_dim
        if not of_rows or x.partitioned_dim == x.ndim - 1:
            not_implemented("searchsorted", "the sequence runs over rows")
        sequence = sequence._local
    elif sequence.dim() != 1:
        not_implemented("searchsorted", "each row has a plain sequence of its own")
    local = aten.searchsorted.Tensor(sequence, x._local, **options)
    return wrap(local, x.row_layout, x.partitioned_dim)


@function_rule(torch.topk, Tensor.topk)
def topk(
    input: PartitionedTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """As `torch.topk`; over rows, values and the user's ids of rows are plain."""
    dim %= input.ndim
    if dim != input.partitioned_dim:
        return run_as_is(torch.topk, input, k, dim, largest, sorted)
    local, layout = input._local, input.row_layout
    count = layout.local_count
    mine = local.topk(min(k, count) if k <= layout.size else k, dim, largest)
    parts = layout.group.all_gather((mine.values.cpu(), layout.positions[mine.indices].cpu()))
    values, ids = (torch.cat(part, dim).to(local.device) for part in zip(*parts, strict=True))
    ids = ids.gather(dim, values.topk(k, dim, largest).indices)
    owners, places = (part.to(local.device) for part in layout.locate(ids))
    is_mine, rows = owners == layout.group.rank, input.to_local()
    if count:
        chosen = rows.gather(dim, torch.where(is_mine, places, 0))
    else:  # zeros, with autograd's history as on other ranks
        chosen = rows.sum(dim, keepdim=True, dtype=rows.dtype).expand(ids.shape)
    own = torch.where(is_mine, chosen, torch.zeros_like(chosen))
    return torch.return_types.topk((sum_over_ranks(own, layout.group), ids))
