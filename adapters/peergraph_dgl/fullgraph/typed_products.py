"""``dgl.ops.gather_mm`` on partitioned rows: layers multiply each row by the matrix of its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.nn.pytorch.linear
import dgl.ops
from torch import Tensor
from torch.overrides import handle_torch_function

from peergraph.fullgraph import PartitionedTensor, from_local, in_layout, replicated

from ..backend import kernels
from ..compat import new_patches

_patches = new_patches()


def install() -> None:
    """Replaces DGL's function wherever layers call it. Idempotent."""
    if not _patches:
        _patches.replace(dgl.ops, "gather_mm", _gather_mm)
        _patches.replace(dgl.nn.pytorch.linear, "gather_mm", _gather_mm)


def _gather_mm(original: Callable[..., Any], a: Tensor, b: Tensor, *, idx_b: Tensor) -> Any:
    if isinstance(a, PartitionedTensor) and isinstance(idx_b, PartitionedTensor):
        return multiply_rows(a, b, idx_b)
    return original(a, b, idx_b=idx_b)


def multiply_rows(a: Tensor, b: Tensor, types: Tensor) -> Any:
    """Returns ``a[i] @ b[types[i]]`` for each row, partitioned as `a` is. Differentiable.

    DGL sorts all rows by their types; here, each rank sorts its own.

    Args:
        a: [rows, k], partitioned along its rows.
        b: [types, k, n], equal on all ranks.
        types: [rows] int, of the rows of `a`.

    Raises:
        ValueError: `types` has other rows.
    """
    if type(a) is not PartitionedTensor or type(types) is not PartitionedTensor:
        # Offloaded rows: the function is recorded, and runs on the rows of each chunk.
        return handle_torch_function(multiply_rows, (a, b, types), a, b, types)
    types_of_rows = in_layout(types, a.row_layout)
    if types_of_rows is None:
        raise ValueError(f"idx_b must have the rows of a, {a.row_layout}, got {types.row_layout}")
    rows, numbers = a.to_local(), types_of_rows.to_local().long()
    order = numbers.argsort(stable=True)
    lengths = numbers.bincount(minlength=b.shape[0])
    products = kernels.segment_mm(rows[order], replicated(b, a.row_layout.group), lengths)
    return from_local(products[order.argsort()], a.row_layout)
