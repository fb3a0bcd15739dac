"""Graph convolution: sums that are normalised by the degrees at both ends of an edge."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate.layers.autocast import without_autocast
from peergraph.aggregate.ops.product_order import multiplies_first
from peergraph.aggregate.ops.spmm_add_self import SumAddSelf
from peergraph.aggregate.structure import Structure
from peergraph.memory.device.default_machine import WORK

NORMS = ("both", "left", "right", "none")


class _Scales(NamedTuple):
    """Factors of rows; None where they are all one."""

    source: Tensor | None
    """[sources, 1]."""
    destination: Tensor | None
    """[destinations, 1]."""
    missing_loops: Tensor | None
    """[nodes, 1] self loops to add to those in the structure; negative if there are too many, since
    Kipf and Welling count one."""


class _Weights(NamedTuple):
    """The same normalisation as weights of edges."""

    edges: Tensor
    """[edges]."""
    loops: Tensor | None
    """[nodes, 1] of self loops that are added."""


def gcn(
    structure: Structure,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    norm: str = "both",
    add_self_loops: bool = False,
    out_degrees: bool = False,
    edge_weight: Tensor | None = None,
    norm_dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes graph convolution (Kipf and Welling 2017): ``D^-1/2 A D^-1/2 x @ weight.T + bias``.

    Degrees are those of the structure, not sums of edge weights; the factors are kept with the
    structure. Sparse graphs, and float16, whose range sums could leave, weight edges; others scale
    rows before and after the sum. Both are the same up to rounding.

    Args:
        structure: the edges.
        x: [sources, in], or [sources, out] if it was multiplied by the weight before.
        weight: [out, in], multiplied before or after the sum, whichever sums fewer columns; None:
            not at all.
        bias: [out].
        norm: ``both``; ``left``: divide sources by their degree; ``right``: divide destinations;
            ``none``.
        add_self_loops: each node has one self loop, whatever loops are among the edges; needs as
            many sources as destinations, and `out_degrees` False.
        out_degrees: normalise sources by the number of their out-edges, as DGL does; else by the
            number of their in-edges, as PyG does, with as many sources as destinations. With
            out-degrees, a degree of 0 counts as 1.
        edge_weight: [edges], by which messages are multiplied; not with self loops.
        norm_dtype: of the factors; None: the dtype of `x`.

    Returns:
        [destinations, out].

    Asynchronous on a GPU, but for the making of the transpose. Differentiable any
    number of times in all tensors.

    Raises:
        ValueError: an unknown norm; arguments or shapes that do not go together.
        TypeError: dtypes that are not supported or differ.
    """
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
    same_nodes = structure.num_sources == structure.num_destinations
    if add_self_loops and (out_degrees or edge_weight is not None or norm != "both"):
        raise ValueError(
            "add_self_loops goes with norm 'both' by in-degrees, and without edge_weight"
        )
    if not same_nodes and (add_self_loops or (norm in ("both", "left") and not out_degrees)):
        raise ValueError(f"norm {norm!r} by in-degrees needs as many sources as destinations, got "
                         f"{structure.num_sources} and {structure.num_destinations}")  # fmt: skip
    dtype = norm_dtype or x.dtype

    def aggregate(rows: Tensor, offset: Tensor | None) -> Tensor:
        return _aggregate(
            structure, rows, offset, norm, add_self_loops, out_degrees, edge_weight, dtype
        )

    if weight is None:
        return aggregate(x, bias)
    first = multiplies_first(x, [weight], is_square=same_nodes)
    if _has_no_factors(norm, edge_weight):
        # The structure keeps the sums itself, if it gets the features instead of their product.
        first = first and not structure.keeps(x, edge_weight)
    elif edge_weight is None and structure.keeps(x):
        key = ("gcn", norm, add_self_loops, out_degrees, dtype)
        return F.linear(structure.keep(x, key, lambda: aggregate(x, None)), weight, bias)
    if first:
        return aggregate(F.linear(x, weight), bias)
    return F.linear(aggregate(x, None), weight, bias)


def weights_edges(structure: Structure, dtype: torch.dtype) -> bool:
    """Returns whether :func:`gcn` weights edges instead of scaling rows by factors of `dtype`."""
    return (
        dtype == torch.float16
        or structure.num_edges <= WORK.weighted_edges * structure.num_destinations
    )


def _has_no_factors(norm: str, edge_weight: Tensor | None) -> bool:
    """Returns whether the result is a sum or a mean of messages."""
    return norm == "none" or (norm == "right" and edge_weight is None)


def _aggregate(
    structure: Structure,
    x: Tensor,
    bias: Tensor | None,
    norm: str,
    self_loops: bool,
    out_degrees: bool,
    edge_weight: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    if _has_no_factors(norm, edge_weight):
        message = "copy_u" if edge_weight is None else "mul"
        reduce = "sum" if norm == "none" else "mean"
        out = without_autocast(lambda: structure.spmm(message, reduce, x, edge_weight))
        return out if bias is None else out + bias
    key = ("gcn scales", norm, self_loops, out_degrees, dtype)

    def make_scales() -> _Scales:
        return _make_scales(structure, norm, self_loops, out_degrees, dtype)

    scales = structure.cached(key, make_scales)
    if weights_edges(structure, dtype):
        weights = structure.cached(
            ("gcn weights", *key[1:]),
            lambda: without_autocast(lambda: _make_weights(structure, scales)),
        )
        return without_autocast(lambda: _weighted_sum(structure, weights, x, bias, edge_weight))
    return without_autocast(lambda: _scaled_sum(structure, scales, x, bias, edge_weight))


def _make_scales(
    structure: Structure, norm: str, self_loops: bool, out_degrees: bool, dtype: torch.dtype
) -> _Scales:
    # Half precision has no room for large degrees.
    wide = torch.promote_types(dtype, torch.float32)
    exponent = -0.5 if norm == "both" else -1.0
    in_degree = structure.in_degrees().to(wide)
    missing = None
    if self_loops:
        missing = 1 - structure.count_self_loops(wide)
        in_degree = in_degree + missing
        missing = missing.to(dtype).unsqueeze(1)
    if out_degrees:
        out_degree = structure.out_degrees().to(wide)
        source = _power(out_degree.clamp_(min=1), exponent, dtype) if norm != "right" else None
        destination = _power(in_degree, exponent, dtype) if norm != "left" else None
        return _Scales(source, destination, missing)
    factor = _power(in_degree, exponent, dtype)
    return _Scales(factor if norm != "right" else None, factor if norm != "left" else None, missing)


def _power(degree: Tensor, exponent: float, dtype: torch.dtype) -> Tensor:
    """Returns degrees to a negative power, [nodes, 1], 0 for degrees of 0; takes `degree` over."""
    factor = degree.pow_(exponent)
    factor.masked_fill_(factor == float("inf"), 0)
    return factor.to(dtype).unsqueeze(1)


def _make_weights(structure: Structure, scales: _Scales) -> _Weights:
    source, destination, missing = scales
    if source is None:
        assert destination is not None
        edges = structure.sddmm("copy", destination, None, "v")
    elif destination is None:
        edges = structure.sddmm("copy", source)
    else:
        edges = structure.sddmm("mul", source, destination)
    loops = None
    if missing is not None:
        assert destination is not None
        loops = destination.square() * missing
    return _Weights(edges.squeeze(1), loops)


def _scaled_sum(
    structure: Structure,
    scales: _Scales,
    x: Tensor,
    bias: Tensor | None,
    edge_weight: Tensor | None,
) -> Tensor:
    """Returns the sum of rows that are scaled before and after."""
    scaled = x if scales.source is None else x * scales.source
    if scales.missing_loops is not None:
        out = structure.spmm_add_self(SumAddSelf(scaled, scales.missing_loops))
    elif edge_weight is None:
        out = structure.spmm("copy_u", "sum", scaled)
    else:
        out = structure.spmm("mul", "sum", scaled, edge_weight)
    if scales.destination is None:
        return out if bias is None else out + bias
    if bias is None:
        return out * scales.destination
    if bias.dtype != out.dtype:
        return out * scales.destination + bias
    # One pass over the result.
    return torch.addcmul(bias, out, scales.destination)


def _weighted_sum(
    structure: Structure,
    weights: _Weights,
    x: Tensor,
    bias: Tensor | None,
    edge_weight: Tensor | None,
) -> Tensor:
    """Returns the sum of weighted edges."""
    x = x.to(torch.promote_types(x.dtype, weights.edges.dtype))
    edges = weights.edges.to(x.dtype)
    if edge_weight is not None:
        edges = edges * edge_weight
    if weights.loops is not None:
        return structure.spmm_add_self(SumAddSelf(x, weights.loops.to(x.dtype), edges, bias))
    out = structure.spmm("mul", "sum", x, edges)
    return out if bias is None else out + bias
