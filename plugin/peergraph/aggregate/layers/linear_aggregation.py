"""Layers that aggregate neighbours and multiply by weights: GraphSAGE, GraphConv, R-GCN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.operands import as_tensor
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.ops.spmm_linear import SumLinear, add_product
from peergraph.aggregate.structure import Structure
from peergraph.memory import TableRows


def sage(
    structure: Structure,
    x: Tensor | TableRows,
    weight: Tensor,
    *,
    reduce: str = "mean",
    self_weight: Tensor | None = None,
    self_x: Tensor | None = None,
    bias: Tensor | None = None,
    edge_weight: Tensor | None = None,
    project_first: bool = False,
) -> Tensor:
    """Computes GraphSAGE: ``reduce(x) @ weight.T + self_x @ self_weight.T + bias``.

    Hamilton et al. 2017; WholeGraph III-C4 for the aggregation.

    Args:
        structure: the edges.
        x: [sources, in] float32, float64, float16 or bfloat16, or rows of a table. For pooling,
            features that went through the pooling layer.
        weight: [out, in].
        reduce: ``mean``, ``sum``, ``max``, ``min``, or ``gcn``: the mean over neighbours and the
            destination itself, which needs no `self_weight`.
        self_weight: [out, in of self_x], or None to leave that term out.
        self_x: [destinations, in of self_x]; None: the first rows of `x`.
        bias: [out].
        edge_weight: [edges], by which messages are multiplied.
        project_first: multiply by `weight` before aggregating, which pays if out is less than in;
            for ``mean``, ``sum`` and ``gcn`` only. A structure may choose the order itself.

    Returns:
        [destinations, out].

    Asynchronous on a GPU, but for the making of the transpose. Sums and means are differentiable
    any number of times, others once.

    Raises:
        ValueError: shapes or devices that do not go together, an unknown reduction.
        TypeError: dtypes that are not supported or differ.
    """
    if project_first and reduce not in ("mean", "sum", "gcn"):
        raise ValueError(f"project_first needs reduce 'mean', 'sum' or 'gcn', got {reduce!r}")
    if reduce == "gcn":
        if self_weight is not None:
            raise ValueError("reduce 'gcn' has no self_weight")
        return _mean_with_self(structure, x, weight, self_x, bias, edge_weight, project_first)
    if edge_weight is None and (not project_first or structure.orders_products):
        return structure.spmm_linear(SumLinear(reduce, x, [weight], self_weight, bias, self_x))
    message = "copy_u" if edge_weight is None else "mul"
    if self_weight is not None and self_x is None:
        self_x = as_tensor(x, structure.num_destinations)
    if project_first:
        sums = structure.spmm(message, reduce, F.linear(as_tensor(x), weight), edge_weight)
        if self_weight is None or self_x is None:
            return sums if bias is None else sums + bias
        return F.linear(self_x, self_weight, bias) + sums
    sums = structure.spmm(message, reduce, x, edge_weight)
    if self_weight is None or self_x is None:
        return F.linear(sums, weight, bias)
    return add_product(F.linear(self_x, self_weight, bias), sums, weight.t())


def _mean_with_self(
    structure: Structure,
    x: Tensor | TableRows,
    weight: Tensor,
    self_x: Tensor | None,
    bias: Tensor | None,
    edge_weight: Tensor | None,
    project_first: bool,
) -> Tensor:
    if project_first:
        x = F.linear(as_tensor(x), weight)
        self_x = None if self_x is None else F.linear(self_x, weight)
    if self_x is None:
        one = torch.ones(1, dtype=x.dtype, device=x.device)
        sums = structure.spmm_add_self(SumAddSelf(x, one, edge_weight))
    else:
        message = "copy_u" if edge_weight is None else "mul"
        sums = structure.spmm(message, "sum", x, edge_weight) + self_x
    mean = sums / (structure.in_degrees().to(sums.dtype).unsqueeze(1) + 1)
    if project_first:
        return mean if bias is None else mean + bias
    return F.linear(mean, weight, bias)


def graph(
    structure: Structure,
    x: Tensor | TableRows,
    weight: Tensor,
    *,
    reduce: str = "sum",
    self_weight: Tensor | None = None,
    self_x: Tensor | None = None,
    bias: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Computes the graph operator of Morris et al. 2019, which is :func:`sage` with sums.

    Args, returns and raises as :func:`sage`.
    """
    return sage(
        structure,
        x,
        weight,
        reduce=reduce,
        self_weight=self_weight,
        self_x=self_x,
        bias=bias,
        edge_weight=edge_weight,
    )


def rgcn(
    structures: Sequence[Structure],
    x: Tensor | TableRows,
    weights: Sequence[Tensor],
    *,
    reduce: str = "mean",
    self_weight: Tensor | None = None,
    self_x: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes R-GCN (Schlichtkrull et al. 2018): :func:`sage` summed over relations.

    Args:
        structures: one for each relation, of one kind and over the same nodes.
        x: [sources, in], or rows of a table.
        weights: [out, in] for each relation.
        reduce: ``mean``, ``sum``, ``max`` or ``min`` within a relation.
        self_weight, self_x, bias: as for :func:`sage`.

    Returns:
        [destinations, out].

    Raises:
        ValueError, TypeError: as :func:`sage`; no relation; weights of another number.
    """
    if not structures or len(structures) != len(weights):
        raise ValueError(f"each structure needs a weight, got {len(structures)} and {len(weights)}")
    first, *others = structures
    return first.spmm_linear(SumLinear(reduce, x, weights, self_weight, bias, self_x, others))


def rgcn_by_basis(
    structure: Structure, x: Tensor | TableRows, coefficients: Tensor, bases: Tensor
) -> Tensor:
    """Computes R-GCN's sum of messages with weights that are combinations of bases.

    The message of an edge is ``x[source] @ sum_b coefficients[edge, b] * bases[b]``. For each basis
    it sums ``x`` weighted by edge and multiplies once, so no message is written.

    Args:
        structure: the edges of all relations.
        x: [sources, in], or rows of a table.
        coefficients: [edges, bases], those of each edge's relation.
        bases: [bases, in, out].

    Returns:
        [destinations, out].

    Raises:
        ValueError, TypeError: as :func:`peergraph.aggregate.g_spmm`; no basis.
    """
    if bases.dim() != 3 or bases.shape[0] == 0:
        raise ValueError(f"bases must be [bases, in, out], got {list(bases.shape)}")
    out: Tensor | None = None
    for weight, matrix in zip(coefficients.unbind(1), bases.unbind(), strict=True):
        sums = structure.spmm("mul", "sum", x, weight)
        out = sums @ matrix if out is None else add_product(out, sums, matrix)
    assert out is not None
    return out
