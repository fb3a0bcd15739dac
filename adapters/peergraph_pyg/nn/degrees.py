"""GCN's normalisation without weights of edges: by the degrees at their ends."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import Csc, g_spmm, spmm_add_self

from .structure import plain


class Degrees(NamedTuple):
    """What a structure's normalisation consists of; a column for each node."""

    inverse_root: Tensor
    """[nodes, 1] 1 / sqrt(degree), self loops included; 0 for nodes without edges."""
    missing_loops: Tensor | None
    """[nodes, 1] self loops to add to those that there are, which may be too many (Kipf and
    Welling count one); None where none are added."""


class Weights(NamedTuple):
    """The same normalisation as weights."""

    of_edges: Tensor
    """[edges] in the order of the edge index."""
    of_loops: Tensor | None
    """[nodes, 1] of self loops that are added."""


# Edges for each node up to which edges are weighted. On an H200 at 128 features, scaling the rows
# takes 1.5 ns more for each node, forward and backward, for they are read and written again; a
# weight costs 0.04 ns in each direction, and 0.03 ns to be made where a structure serves once.
_WEIGHED = 8

_kept: weakref.WeakKeyDictionary[Csc, dict[tuple[bool, torch.dtype], Degrees]] = (
    weakref.WeakKeyDictionary()
)
_kept_weights: weakref.WeakKeyDictionary[Csc, dict[tuple[bool, torch.dtype], Weights]] = (
    weakref.WeakKeyDictionary()
)


def degrees_of(csc: Csc, edge_index: Tensor, self_loops: bool, dtype: torch.dtype) -> Degrees:
    """The normalisation, made once for a structure. Does not synchronise.

    Args:
        csc: of `edge_index`, with as many sources as destinations.
        edge_index: [2, edges], plain or PyG's EdgeIndex.
        self_loops: every node has one self loop, whatever loops there are among the edges.
        dtype: of the result.
    """
    kept = _kept.setdefault(csc, {})
    key = self_loops, dtype
    if key not in kept:
        with _lasting():
            kept[key] = _degrees_of(csc, edge_index, self_loops, dtype)
    return kept[key]


def _degrees_of(csc: Csc, edge_index: Tensor, self_loops: bool, dtype: torch.dtype) -> Degrees:
    # In half precision there is no room for large degrees.
    wide = torch.promote_types(dtype, torch.float32)
    degree = csc.in_degrees().to(wide)
    missing = None
    if self_loops:
        source, destination = plain(edge_index)
        loops = (source == destination).to(wide)
        missing = 1 - torch.zeros_like(degree).index_add_(0, destination, loops)
        degree = degree + missing
        missing = missing.to(dtype).unsqueeze(1)
    root = degree.pow_(-0.5)
    root.masked_fill_(root == float("inf"), 0)
    return Degrees(root.to(dtype).unsqueeze(1), missing)


def _lasting() -> AbstractContextManager[None]:
    """For what is kept: tensors of inference mode could not serve gradients later."""
    mode: AbstractContextManager[None] = torch.inference_mode(False)
    return mode


def normalised_sum(csc: Csc, degrees: Degrees, x: Tensor, bias: Tensor | None) -> Tensor:
    """[nodes, features]: D^-1/2 (A + I) D^-1/2 x + bias, as a plain sum of rows scaled before."""
    scaled = x * degrees.inverse_root
    if degrees.missing_loops is None:
        out = g_spmm(csc, "copy_u", "sum", scaled)
    else:
        out = spmm_add_self(csc, scaled, degrees.missing_loops)
    if bias is None:
        return out * degrees.inverse_root
    if bias.dtype != out.dtype:
        return out * degrees.inverse_root + bias
    # In one pass over the result.
    return torch.addcmul(bias, out, degrees.inverse_root)


def weighs_edges(csc: Csc, dtype: torch.dtype) -> bool:
    """Whether weights of edges cost less than passes over the rows, or float16 needs them: sums
    that are yet to be scaled may be out of its range.
    """
    return dtype == torch.float16 or csc.num_edges <= _WEIGHED * csc.num_destinations


def weights_of(csc: Csc, edge_index: Tensor, degrees: Degrees) -> Weights:
    """The weights, made once for a structure. Does not synchronise.

    Args:
        csc, edge_index: as for :func:`degrees_of`.
        degrees: of these.
    """
    kept = _kept_weights.setdefault(csc, {})
    key = degrees.missing_loops is not None, degrees.inverse_root.dtype
    if key not in kept:
        with _lasting():
            kept[key] = _weights_of(edge_index, degrees)
    return kept[key]


def _weights_of(edge_index: Tensor, degrees: Degrees) -> Weights:
    root = degrees.inverse_root
    source, destination = plain(edge_index)
    flat = root.squeeze(1)
    loops = degrees.missing_loops
    return Weights(
        flat[source] * flat[destination], None if loops is None else root.square() * loops
    )


def weighted_sum(csc: Csc, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
    """[nodes, features]: as :func:`normalised_sum`, as a sum of weighted edges."""
    x = x.to(torch.promote_types(x.dtype, weights.of_edges.dtype))
    edges = weights.of_edges.to(x.dtype)
    if weights.of_loops is not None:
        return spmm_add_self(csc, x, weights.of_loops.to(x.dtype), edges, bias)
    out = g_spmm(csc, "mul", "sum", x, edges)
    return out if bias is None else out + bias
