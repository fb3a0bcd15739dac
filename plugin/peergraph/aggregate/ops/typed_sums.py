"""Sums over the relations of a typed layer, then products: one function of autograd.

The sums of all relations into a node type lie side by side, beside the destinations' own rows, so
that one product multiplies and adds all of them: see :class:`RelationBlocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.kernels.arguments import sum_dtype
from peergraph.aggregate.ops.edge_maps import source_sums
from peergraph.aggregate.ops.gradient_checks import unbatched
from peergraph.aggregate.ops.row_products import (
    add_product,
    add_product_of_columns,
    multiply,
    product_of_rows,
)
from peergraph.aggregate.ops.side_by_side_weights import SideBySideWeights
from peergraph.aggregate.ops.source_gradients import divide_by_degrees
from peergraph.aggregate.ops.source_rows import Rows, sum_rows
from peergraph.aggregate.ops.typed_sum_plan import SumPlan
from peergraph.aggregate.sparse.relation_blocks import BlockGroup, RelationBlocks


class TypedResult(NamedTuple):
    """A result of a typed layer."""

    first: Tensor
    """[edges.rows, out]: the destinations that may have edges."""
    gradients: Tensor | None = None
    """[destinations, out] without memory: who appends rows to the first gives their gradient to it
    (:func:`peergraph.aggregate.ops.appended_products.append_products`). None where the
    destinations' features need no gradient, or all rows are there.
    """
    weight: Tensor | None = None
    """[out, columns] by which the destinations' own rows are multiplied; None where they are not,
    or all rows are there."""
    bias: Tensor | None = None
    """[out] that is added to each row; None where nothing is."""


def sum_and_multiply(
    edges: RelationBlocks,
    features: Sequence[Rows],
    weights: Sequence[Tensor | Sequence[Sequence[Tensor]]],
    biases: Sequence[Sequence[Tensor]],
    factors: list[float],
    edge_values: Sequence[Tensor | None],
    mean: bool,
    dtype: torch.dtype,
) -> list[TypedResult]:
    """Returns each result, of `dtype`; differentiable any number of times.

    Args:
        edges: the edges.
        features: [rows, columns] each, `dtype` or float32; those of a group are of one kind.
        weights: for each group, the weights [out, columns] of each of its blocks, which are added
            up; or [products, out, columns of a product's blocks] for all, whose factors are ones.
        biases: [out] each, of each result, which are added up.
        factors: of products and biases, by result.
        edge_values: for each group, the weights of its edges, [edges, 1] of the features' dtype, or
            None.
        mean: means instead of sums.
        dtype: of products.
    """
    by_group = [
        [each] if isinstance(each, Tensor) else list(chain.from_iterable(each)) for each in weights
    ]
    plan = SumPlan(
        edges,
        [None if isinstance(each, Tensor) else each for each in features],
        list(map(len, biases)),
        factors,
        [
            SideBySideWeights.of_group(group, each, factors)
            for group, each in zip(edges.groups, weights, strict=True)
        ],
        list(edge_values),
        mean,
        dtype,
        by_group[0][0].shape[-2],
    )
    results: tuple[Tensor, ...] = _SumAndMultiply.apply(  # type: ignore[no-untyped-call]
        plan,
        *(each if isinstance(each, Tensor) else None for each in features),
        *chain.from_iterable(biases),
        *chain.from_iterable(by_group),
    )
    count = len(biases)
    return list(map(TypedResult, *[results[i * count : (i + 1) * count] for i in range(4)]))


def total_of(parameters: Sequence[Tensor]) -> Tensor:
    """Returns the sum of parameters of one shape.

    Gradients have memory of their own each: those of ``torch.stack(parameters).sum(0)`` share it,
    and who scales gradients in place would scale them more than once.
    """
    if len(parameters) == 1:
        return parameters[0]
    total: Tensor = _Total.apply(*parameters)  # type: ignore[no-untyped-call]
    return total


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        ctx.set_materialize_grads(False)
        return torch.stack(parameters).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return tuple(None for _ in range(ctx.count))
        return tuple(grad.expand(ctx.count, *grad.shape).contiguous().unbind())


def if_used(tensor: Tensor, used: set[int], outputs: Sequence[int]) -> Tensor:
    """Returns the tensor, which gets no gradient unless one of some results has one.

    Args:
        tensor: a parameter, or features.
        used: from :func:`split_results`, which fills it in the backward pass.
        outputs: positions of results.
    """
    result: Tensor = _IfUsed.apply(tensor, used, outputs)  # type: ignore[no-untyped-call]
    return result


class _IfUsed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, used: set[int], outputs: Sequence[int]) -> Tensor:
        ctx.used, ctx.outputs = used, outputs
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        return (None if ctx.used.isdisjoint(ctx.outputs) else grad), None, None


def split_results(rows: Tensor, lengths: list[int], used: set[int]) -> tuple[Tensor, ...]:
    """Returns the rows of each result, one after the other; `used` gets those with a gradient."""
    results: tuple[Tensor, ...] = _SplitResults.apply(rows, lengths, used)  # type: ignore[no-untyped-call]
    return results


class _SplitResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: list[int], used: set[int]) -> tuple[Tensor, ...]:
        ctx.lengths, ctx.used, ctx.columns = lengths, used, rows.shape[1]
        ctx.set_materialize_grads(False)
        return torch.split(rows, lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        ctx.used.clear()
        ctx.used.update(output for output, grad in enumerate(grads) if grad is not None)
        first = next((grad for grad in grads if grad is not None), None)
        if first is None:
            return None, None, None
        parts = [
            first.new_zeros(length, ctx.columns) if grad is None else grad
            for length, grad in zip(ctx.lengths, grads, strict=True)
        ]
        return torch.cat(parts), None, None


class _SumAndMultiply(torch.autograd.Function):
    """Returns the results, what takes gradients of all of their rows, what makes rows that they
    lack: weights and biases, each for all results, and the sums of each group.

    So second derivatives reach features through these sums without keeping the features.
    """

    @staticmethod
    def forward(ctx: Any, plan: SumPlan, *operands: Tensor | None) -> tuple[Tensor | None, ...]:
        features, biases, weights = plan.split(operands)
        saved_sums = []
        for group, values in zip(plan.edges.groups, plan.edge_values, strict=True):
            pairs = [(plan.stored[i], features[i]) for i in group.features]
            rows = [x if stored is None else stored for stored, x in pairs]
            shape = group.matrix.num_destinations, rows[0].shape[1]
            saved_sums.append(torch.empty(shape, dtype=plan.dtype, device=plan.edges.device))
            sum_rows(saved_sums[-1], group.matrix, rows, values, plan.mean)
        matrices = [
            each.matrices(of_group, plan.dtype)
            for each, of_group in zip(plan.weights, weights, strict=True)
        ]
        totals = plan.biases(biases)
        own_weights = plan.own_weights(matrices)
        own_biases = [totals.get(output) for output in range(len(plan.edges.rows))]
        results = _products(plan, saved_sums, matrices, totals)
        ctx.plan, ctx.matrices = plan, matrices
        ctx.dtypes = [None if x is None else x.dtype for x in features]
        ctx.save_for_backward(*operands[len(features) :], *saved_sums)
        ctx.set_materialize_grads(False)
        needs = ctx.needs_input_grad[1:]
        groups = zip(plan.edges.groups, saved_sums, strict=True)
        fixed = [sums for group, sums in groups if not any(needs[i] for i in group.features)]
        if not any(needs[len(features) :]):
            fixed += [each for each in (*own_weights, *own_biases) if each is not None]
        ctx.mark_non_differentiable(*fixed)
        return *results, *plan.gradient_receivers(needs), *own_weights, *own_biases, *saved_sums

    @staticmethod
    @unbatched
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        plan: SumPlan = ctx.plan
        count, groups = len(plan.edges.rows), plan.edges.groups
        first, of_all, of_own, of_totals = (grads[i * count : (i + 1) * count] for i in range(4))
        firsts = _of_first_rows(first, of_all, [*zip(of_own, of_totals, strict=True)], plan)
        of_kept = grads[4 * count :]
        if torch.is_grad_enabled() or any(grad is not None for grad in of_kept):
            return _gradients_again(ctx, firsts, of_all, of_own, of_totals, of_kept)
        of_results = [None if grad is None else grad.contiguous() for grad in firsts]
        needs, _, _ = plan.split(ctx.needs_input_grad[1:])
        parameters, saved_sums = (
            ctx.saved_tensors[: -len(groups)],
            ctx.saved_tensors[-len(groups) :],
        )
        _, biases, weights = plan.split((*plan.stored, *parameters))
        of_features: list[Tensor | None] = [None] * len(plan.stored)
        of_weights: list[Tensor | None] = []
        for number, (group, sums) in enumerate(zip(groups, saved_sums, strict=True)):
            used = {output for output in group.outputs if of_results[output] is not None}
            dtypes = [ctx.dtypes[i] for i in group.features if needs[i]]
            of_sums = torch.empty_like(sums, dtype=dtypes[0]) if used and dtypes else None
            matrices, joined = ctx.matrices[number], plan.weights[number]
            whole = joined.new_gradient(matrices, sum_dtype(plan.dtype))
            grads_of_products = _by_product(group, of_results, plan)
            of_products = joined.by_product(whole)
            of_rows = [None] * len(matrices) if of_sums is None else group.by_product(of_sums)
            operands = group.by_product(sums), of_rows, matrices, of_products, grads_of_products
            for rows, of_these, matrix, total, grad in zip(*operands, strict=True):
                if grad is None or grad.shape[0] == 0:
                    if grad is not None or joined.counts is None:
                        total.zero_()
                    if of_these is not None:
                        of_these.zero_()
                    continue
                add_product_of_columns(total, grad, rows, True)
                if of_these is not None:
                    add_product(of_these, grad, matrix, True)
            for tail in plan.tails[number]:
                of_weight = of_own[tail.output]
                if of_weight is not None:
                    tail.columns_of(of_products[tail.product]).add_(of_weight)
            is_used = [grad is not None for grad in grads_of_products]
            of_weights += joined.gradients(whole, weights[number], is_used)
            if of_sums is not None:
                of_columns = group.split(_to_sources(plan, number, of_sums))
                for feature, begin, grad, own in plan.own_gradients(number, of_all, matrices):
                    if needs[feature]:
                        part = of_columns[group.features.index(feature)]
                        add_product(part[begin:], grad.contiguous(), own, False)
                read = {f for f, o in zip(group.sources, group.outputs, strict=True) if o in used}
                for i, part in zip(group.features, of_columns, strict=True):
                    of_features[i] = part if needs[i] and i in read else None
        of_biases = plan.bias_gradients(of_results, of_totals, biases)
        return None, *of_features, *of_biases, *of_weights


def _of_first_rows(
    grads: Sequence[Tensor | None],
    of_all: Sequence[Tensor | None],
    of_others: Sequence[tuple[Tensor | None, ...]],
    plan: SumPlan,
) -> list[Tensor | None]:
    """Returns the gradients of the first rows of results, of which all rows, or what makes others,
    may have one.
    """
    totals = []
    for grad, whole, others, rows in zip(grads, of_all, of_others, plan.edges.rows, strict=True):
        if whole is not None:
            grad = whole[:rows] if grad is None else grad + whole[:rows]
        other = next((each for each in others if each is not None), None)
        if grad is None and other is not None:
            grad = other.new_zeros(rows, plan.columns)
        totals.append(grad)
    return totals


def _products(
    plan: SumPlan,
    sums: Sequence[Tensor],
    matrices: Sequence[Sequence[Tensor]],
    biases: dict[int, Tensor],
) -> list[Tensor]:
    """Returns the results, given the sums of each group, the matrices of its products, and biases
    by result.
    """
    results: list[Tensor | None] = [None] * len(plan.edges.rows)
    for group, of_group, of_products in zip(plan.edges.groups, sums, matrices, strict=True):
        by_product = group.by_product(of_group)
        if not group.is_compact:
            for product, rows, matrix in zip(group.products, by_product, of_products, strict=True):
                total = results[product.output]
                if total is None:
                    bias = biases.pop(product.output, None)
                    results[product.output] = product_of_rows(rows, matrix.t(), bias)
                else:
                    add_product(total, rows, matrix.t(), False)
            continue
        parts = of_group.new_empty(group.matrix.num_destinations, plan.columns)
        outs = group.by_product(parts)
        for rows, out, matrix in zip(by_product, outs, of_products, strict=True):
            multiply(rows, matrix.t(), out)
        for output, (range_of, of_destinations) in group.sums.items():
            total = results[output]
            if total is None:
                results[output] = of_destinations.sum_messages(parts[range_of], None, "copy_u")
            else:
                of_destinations.add_messages(total, parts[range_of], None, "copy_u")
    for output, total in enumerate(results):
        if total is None:
            total = results[output] = sums[0].new_zeros(plan.edges.rows[output], plan.columns)
        if output in biases:
            total.add_(biases[output])
    return [total for total in results if total is not None]


def _by_product(
    group: BlockGroup, grads: Sequence[Tensor | None], plan: SumPlan
) -> list[Tensor | None]:
    """Returns the gradient of each product of a group; None if nothing reads its result."""
    if group.owners is None:
        return [grads[product.output] for product in group.products]
    parts = [
        torch.zeros(rows, plan.columns, dtype=plan.dtype, device=group.owners.device)
        if grad is None
        else grad
        for rows, grad in zip(plan.edges.rows, grads, strict=True)
    ]
    whole = torch.cat(parts).index_select(0, group.owners)
    by_product = zip(group.products, group.by_product(whole), strict=True)
    return [None if grads[each.output] is None else rows for each, rows in by_product]


def _to_sources(plan: SumPlan, number: int, of_sums: Tensor) -> Tensor:
    """Returns the gradient of the rows that a group reads, given that of its sums."""
    group, values = plan.edges.groups[number], plan.edge_values[number]
    transpose = group.matrix.transpose()
    if values is not None:
        if plan.mean:
            of_sums = divide_by_degrees(group.matrix, of_sums)
        return transpose.sum_messages(of_sums, values.to(of_sums.dtype), "mul")
    if plan.mean:
        return transpose.sum_messages(of_sums, group.inverse_degrees(of_sums.dtype), "mul")
    return transpose.sum_messages(of_sums, None, "copy_u")


def _gradients_again(
    ctx: Any,
    grads: Sequence[Tensor | None],
    of_all: Sequence[Tensor | None],
    of_own: Sequence[Tensor | None],
    of_totals: Sequence[Tensor | None],
    of_kept: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """As the backward pass, differentiable, and with gradients of the sums."""
    plan: SumPlan = ctx.plan
    groups = plan.edges.groups
    needs, _, _ = plan.split(ctx.needs_input_grad[1:])
    parameters, saved_sums = ctx.saved_tensors[: -len(groups)], ctx.saved_tensors[-len(groups) :]
    _, biases, weights = plan.split((*plan.stored, *parameters))
    of_biases = plan.bias_gradients(grads, of_totals, biases)
    of_features: list[Tensor | None] = [None] * len(plan.stored)
    of_weights: list[Tensor | None] = []
    for number, (group, sums) in enumerate(zip(groups, saved_sums, strict=True)):
        of_products = _by_product(group, grads, plan)
        joined = plan.weights[number]
        matrices = joined.matrices(weights[number], plan.dtype)
        by_product = list(zip(group.by_product(sums), matrices, of_products, strict=True))
        totals = [
            torch.zeros_like(matrix) if grad is None else grad.t() @ rows
            for rows, matrix, grad in by_product
        ]
        for tail in plan.tails[number]:
            of_weight = of_own[tail.output]
            if of_weight is not None:
                totals[tail.product] = totals[tail.product] + tail.padded(of_weight)
        whole = torch.stack(totals) if joined.counts is None else torch.cat(totals, 1)
        is_used = [grad is not None for grad in of_products]
        of_weights += joined.gradients(whole, weights[number], is_used)
        if not any(needs[i] for i in group.features):
            continue
        parts = [
            (torch.zeros_like(rows) if grad is None else grad @ matrix).view(-1, sums.shape[1])
            for rows, matrix, grad in by_product
        ]
        of_sums = torch.cat(parts)
        of_these = of_kept[number]
        if of_these is not None:
            of_sums = of_sums + of_these
        of_sums = of_sums.to(next(ctx.dtypes[i] for i in group.features if needs[i]))
        if plan.mean:
            of_sums = divide_by_degrees(group.matrix, of_sums)
        values = plan.edge_values[number]
        matrix, transpose = group.matrix, group.matrix.transpose()
        if values is None:
            rows = source_sums(matrix, transpose, of_sums.contiguous(), None, "copy_u")
        else:
            weights_of_edges = values.to(of_sums.dtype)
            rows = source_sums(matrix, transpose, of_sums.contiguous(), weights_of_edges, "mul")
        of_group = dict(zip(group.features, group.split(rows), strict=True))
        for feature, begin, grad, own in plan.own_gradients(number, of_all, matrices):
            part = (grad @ own).to(rows.dtype)
            of_group[feature] = of_group[feature] + F.pad(part, (0, 0, begin, 0))
        read = {
            f for f, o in zip(group.sources, group.outputs, strict=True) if grads[o] is not None
        }
        for i, part in of_group.items():
            of_features[i] = part if needs[i] and (i in read or of_these is not None) else None
    return None, *of_features, *of_biases, *of_weights
