"""Graph isomorphism networks: sums of neighbours and of a destination's own features."""

from __future__ import annotations

import torch
from torch import Tensor

from peergraph.aggregate.layers.autocast import without_autocast
from peergraph.aggregate.messages.message import message
from peergraph.aggregate.ops.operands import as_tensor
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.structure import Structure
from peergraph.memory import TableRows
from peergraph.memory.device.default_machine import WORK


def gin(
    structure: Structure,
    x: Tensor | TableRows,
    eps: Tensor | float,
    *,
    reduce: str = "sum",
    self_x: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Computes the input of GIN's network (Xu et al. 2019): ``reduce(x) + (1 + eps) * self_x``.

    Args:
        structure: the edges.
        x: [sources, features] float32, float64, float16 or bfloat16, or rows of a table.
        eps: a number, or a tensor [] or [1].
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        self_x: [destinations, features]; None: the first rows of `x`.
        edge_weight: [edges], by which messages are multiplied.

    Returns:
        [destinations, features].

    Asynchronous on a GPU, but for the making of the transpose. Sums and means are differentiable
    any number of times, others once.

    Raises:
        ValueError: shapes or devices that do not go together, an unknown reduction.
        TypeError: dtypes that are not supported or differ.
    """
    factor = _self_weight(eps, x.dtype, x.device)
    if reduce == "sum" and self_x is None:
        return structure.spmm_add_self(SumAddSelf(x, factor, edge_weight))
    out = structure.spmm("copy_u" if edge_weight is None else "mul", reduce, x, edge_weight)
    rows = as_tensor(x, structure.num_destinations) if self_x is None else self_x
    return torch.addcmul(out, rows, factor)


def gine(
    structure: Structure,
    x: Tensor | TableRows,
    edge_features: Tensor,
    eps: Tensor | float | None = None,
    *,
    reduce: str = "sum",
    self_x: Tensor | None = None,
) -> Tensor:
    """Computes the input of GINE's network: ``reduce(relu(x + e)) + (1 + eps) * self_x``.

    Hu et al. 2020. Where a structure fuses messages they are never written; else the sums of
    features of nodes and edges are written by edge.

    Args:
        structure: the edges.
        x: [sources, features] float32, float64, float16 or bfloat16, or rows of a table.
        edge_features: [edges, features].
        eps: a number, or a tensor [] or [1]; None: leave the self term out.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        self_x: [destinations, features]; None: the first rows of `x`.

    Returns:
        [destinations, features].

    Asynchronous on a GPU, but for compiling and for the making of the transpose. Differentiable
    once.

    Raises:
        ValueError: shapes or devices that do not go together, an unknown reduction.
        TypeError: dtypes that are not supported or differ.
    """
    dtype = torch.promote_types(x.dtype, edge_features.dtype)
    rows = as_tensor(x)
    sources, edges = rows.to(dtype), edge_features.to(dtype)
    if fuses_gine(structure, sources):
        fused = message("relu(u + e)", reduce)
        out = without_autocast(lambda: structure.reduce_message(fused, {"u": sources, "e": edges}))
    else:
        sums = without_autocast(lambda: structure.sddmm("add", sources, edges, "u", "e"))
        messages = sums.relu()
        out = without_autocast(lambda: structure.spmm("copy_e", reduce, e=messages))
    if eps is None:
        return out
    rows = as_tensor(rows, structure.num_destinations) if self_x is None else self_x
    return torch.addcmul(out, rows, _self_weight(eps, x.dtype, x.device))


def fuses_gine(structure: Structure, x: Tensor) -> bool:
    """Returns whether :func:`gine` reduces messages in one kernel, without writing them.

    The gradient of that kernel runs over the transpose, which pays if the structure serves more
    than once or if there are many values.
    """
    pays = not structure.transient or x.shape[1] * structure.num_edges >= WORK.transposed_values
    return structure.fuses_messages() and pays


def _self_weight(eps: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(eps, Tensor):
        return 1 + eps
    return torch.full((1,), 1 + eps, dtype=dtype, device=device)
