"""Sums over all relations of a typed layer, multiplied by weights of relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.ops.source_rows import Rows
from peergraph.aggregate.ops.spmm import Sum, spmm
from peergraph.aggregate.ops.typed_sums import (
    TypedResult,
    if_used,
    split_results,
    sum_and_multiply,
    total_of,
)
from peergraph.aggregate.sparse.relation_blocks import BlockGroup, RelationBlocks
from peergraph.aggregate.sparse.relation_columns import RelationColumns


class SumRelation(NamedTuple):
    """The parameters of one relation.

    Args:
        output: the position of the result to which the relation belongs.
        weight: [out, columns of sources], by which sums or means are multiplied.
        self_weight: [out, columns of destinations], by which the destinations' own rows are
            multiplied, or None.
        bias: [out], or None.
    """

    output: int
    weight: Tensor
    self_weight: Tensor | None = None
    bias: Tensor | None = None


def typed_sage(
    edges: RelationBlocks,
    features: Sequence[Rows],
    relations: Sequence[SumRelation],
    *,
    reduce: str = "mean",
    scales: Sequence[float] | None = None,
    edge_weights: Sequence[Tensor | None] | None = None,
    dtype: torch.dtype | None = None,
) -> list[TypedResult]:
    """Sums :func:`sage` over all relations into each of several results.

    One kernel sums rows of all relations, and one product for each result multiplies the sums of
    its relations and the destinations' own rows, whose weights are added up before. Only
    destinations up to the last one with edges are computed, if many have none.

    Args:
        edges: the edges, in blocks.
        features: [rows, columns] each, of `dtype` or float32; encoded rows, or rows of tables that
            kernels can read, are decoded as they are read.
        relations: parameters of each relation of `edges`. The destinations' own rows are multiplied
            where `edges` has them.
        reduce: ``mean`` or ``sum`` within a relation.
        scales: factors of results; None: ones.
        edge_weights: [edges] of each relation or None, by which messages are multiplied, if `edges`
            is weighted; they have no gradients.
        dtype: of products; None: that of the weights.

    Returns:
        Each result, of `dtype`; :func:`append_products` gives it the other rows.

    Synchronises no GPU. Differentiable any number of times.

    Raises:
        ValueError: an unknown reduction.
    """
    _check_reduction(reduce)
    dtype = relations[0].weight.dtype if dtype is None else dtype
    factors = [1.0] * len(edges.rows) if scales is None else scales
    weights = [() if edge_weights is None else edge_weights for _ in edges.groups]
    by_output = _by_output(relations, len(factors))
    return sum_and_multiply(
        edges,
        features,
        [_weights(group, relations, by_output) for group in edges.groups],
        [[each.bias for each in of_output if each.bias is not None] for of_output in by_output],
        list(factors),
        [
            _edge_values(group, each, features[group.features[0]].dtype)
            for group, each in zip(edges.groups, weights, strict=True)
        ],
        reduce == "mean",
        dtype,
    )


def typed_sage_of_products(
    edges: RelationColumns,
    features: Sequence[Tensor],
    relations: Sequence[SumRelation],
    sources: Sequence[int],
    own: Sequence[int | None],
    *,
    reduce: str = "mean",
    scales: Sequence[float] | None = None,
    edge_weights: Sequence[Tensor | None] | None = None,
    dtype: torch.dtype | None = None,
) -> list[TypedResult]:
    """As :func:`typed_sage`, but sums products: for results that are narrower than features.

    Args:
        edges: from :meth:`RelationColumns.of_relations`.
        features: [rows, columns] each.
        relations, reduce, scales, edge_weights, dtype: as for :func:`typed_sage`.
        sources: the position of each relation's features.
        own: for each result, the position of its destinations' own features, or None.

    Returns:
        As :func:`typed_sage`.

    Raises:
        ValueError: an unknown reduction.
    """
    _check_reduction(reduce)
    dtype = relations[0].weight.dtype if dtype is None else dtype
    factors = [1.0] * len(edges.rows) if scales is None else scales
    used: set[int] = set()
    products = []
    for feature, x in enumerate(features):
        chosen = [
            each for each, source in zip(relations, sources, strict=True) if source == feature
        ]
        if chosen:
            x = if_used(x, used, [each.output for each in chosen])
            parts = [
                _scaled(if_used(each.weight, used, [each.output]), factors[each.output])
                for each in chosen
            ]
            products.append(
                F.linear(x.to(dtype), torch.cat(parts).to(dtype)).view(-1, len(parts[0]))
            )
    values = None
    if edge_weights is not None and any(each is not None for each in edge_weights):
        values = _weights_of_edges(edge_weights, edges.num_edges, dtype, edges.matrix.device)
    if reduce == "mean":
        weights = edges.mean_weights(dtype)
        values = weights if values is None else values * weights
    message = "copy_u" if values is None else "mul"
    rows = products[0] if len(products) == 1 else torch.cat(products)
    sums = split_results(spmm(edges.matrix, Sum(message, "sum", rows, values)), edges.rows, used)
    results = []
    by_output = _by_output(relations, len(factors))
    for of_output, total, mine, factor in zip(by_output, sums, own, factors, strict=True):
        bias = _bias(of_output, factor)
        bias = None if bias is None else bias.to(dtype)
        weight = None
        if mine is not None:
            weight = _scaled(total_of(_own_weights(of_output)), factor).to(dtype)
            total = total + F.linear(features[mine][: len(total)].to(dtype), weight, bias)
        else:
            total = total.clone() if bias is None else total + bias
        results.append(TypedResult(total, None, weight, bias))
    return results


def typed_rgcn(
    edges: RelationBlocks,
    features: Sequence[Rows],
    weight: Tensor,
    *,
    reduce: str = "mean",
    self_weight: Tensor | None = None,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> TypedResult:
    """Computes R-GCN (Schlichtkrull et al. 2018) as :func:`typed_sage`.

    Args:
        edges: from :meth:`RelationBlocks.of_edge_types`.
        features: of sources, and of destinations if these are others.
        weight: [relations, in, out].
        reduce: ``mean`` or ``sum`` within a relation.
        self_weight: [in of destinations, out], if `edges` has the destinations' own rows.
        bias: [out], or None.
        dtype: of products; None: that of the weights.

    Returns:
        The result, as those of :func:`typed_sage`.

    Raises:
        ValueError: an unknown reduction.
    """
    _check_reduction(reduce)
    matrices = []
    for group in edges.groups:
        parts = [weight] if group.relations[0] is not None else []
        if None in group.relations:
            assert self_weight is not None
            parts.append(self_weight.unsqueeze(0))
        stack = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not group.is_compact:  # one product
            stack = stack.reshape(1, -1, stack.shape[2])
        matrices.append(stack.transpose(1, 2))
    dtype = weight.dtype if dtype is None else dtype
    nothing = [None] * len(edges.groups)
    biases = [[] if bias is None else [bias]]
    (result,) = sum_and_multiply(
        edges, features, matrices, biases, [1.0], nothing, reduce == "mean", dtype
    )
    return result


def rgcn_of_ids(edges: RelationColumns, weight: Tensor, *, reduce: str = "mean") -> Tensor:
    """Computes R-GCN's sum over neighbours of nodes without features.

    Args:
        edges: the edges.
        weight: [relations, ids, out]: the message of an edge is a row of it.
        reduce: ``mean`` or ``sum`` within a relation.

    Returns:
        [destinations, out]. Differentiable any number of times.

    Raises:
        ValueError: an unknown reduction, or weights of other shapes.
    """
    _check_reduction(reduce)
    rows = weight.reshape(-1, weight.shape[-1])
    if reduce == "sum":
        return spmm(edges.matrix, Sum("copy_u", "sum", rows))
    return spmm(edges.matrix, Sum("mul", "sum", rows, edges.mean_weights(rows.dtype)))


def _check_reduction(reduce: str) -> None:
    if reduce not in ("mean", "sum"):
        raise ValueError(f"reduce must be 'mean' or 'sum', got {reduce!r}")


def _by_output(relations: Sequence[SumRelation], count: int) -> list[list[SumRelation]]:
    """Returns the relations of each of `count` results."""
    by_output: list[list[SumRelation]] = [[] for _ in range(count)]
    for each in relations:
        by_output[each.output].append(each)
    return by_output


def _own_weights(of_output: Sequence[SumRelation]) -> list[Tensor]:
    """Returns the weights of the destinations' own rows of a result."""
    return [each.self_weight for each in of_output if each.self_weight is not None]


def _weights(
    group: BlockGroup, relations: Sequence[SumRelation], by_output: Sequence[Sequence[SumRelation]]
) -> list[list[Tensor]]:
    """Returns the weights [out, columns] of each block of a group."""
    return [
        _own_weights(by_output[output]) if relation is None else [relations[relation].weight]
        for relation, output in zip(group.relations, group.outputs, strict=True)
    ]


def _bias(of_output: Sequence[SumRelation], factor: float) -> Tensor | None:
    """Returns the sum of the biases of a result, times a factor."""
    biases = [each.bias for each in of_output]
    there = [bias for bias in biases if bias is not None]
    return _scaled(total_of(there), factor) if there else None


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


def _edge_values(
    group: BlockGroup, edge_weights: Sequence[Tensor | None], dtype: torch.dtype
) -> Tensor | None:
    """Returns the weights of a group's edges, [edges, 1] of `dtype`; None if it has none.

    Args:
        edge_weights: [edges] of each relation, or None for ones.
    """
    if group.matrix.edge_ids is None:
        return None
    weights = [None if relation is None else edge_weights[relation] for relation in group.relations]
    values = _weights_of_edges(weights, group.num_edges, dtype, group.matrix.device)
    return values.unsqueeze(1)


def _weights_of_edges(
    edge_weights: Sequence[Tensor | None],
    counts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Returns the weights of all edges, [edges]; None: ones, as many as counted."""
    return torch.cat(
        [
            torch.ones(count, dtype=dtype, device=device)
            if weights is None
            else weights.detach().reshape(-1).to(dtype)
            for weights, count in zip(edge_weights, counts, strict=True)
        ]
    )
