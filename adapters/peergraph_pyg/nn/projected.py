"""Layers whose sums go through linear maps and meet the nodes' own, in products that add up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.dense.linear import Linear

from peergraph.aggregate import Csc, spmm_linear
from peergraph.integration import note
from peergraph.memory import TableRows

from ..compat import has_hooks
from ..data.lazy_features import gathered, rows_or_tensor
from .layer import Ends, FastLayer, Size, is_plain, kind_of, refuse


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first rows of `x`, of which layers know that they are that."""
    rows: Tensor = x.narrow(0, 0, count)
    rows.peergraph_first_of = x  # type: ignore[attr-defined]
    return rows


def are_first_rows(rows: Tensor | None, x: Tensor) -> bool:
    """Whether gradients of `rows` are wanted for `x` alone.

    Slices of users are not known as such: they may ask for their gradients.
    """
    if rows is None or type(x) is not Tensor:
        return False
    return rows is x or getattr(rows, "peergraph_first_of", None) is x


def check_projection(layer: FastLayer, x: Ends, edge_index: Any) -> str:
    """The reduction. Raises Refusal unless sums and products of the layer can be one step."""
    reduce = layer._check_settings()
    layer._check_steps("propagate")
    refuse(not isinstance(edge_index, Tensor), f"edge_index is a {kind_of(edge_index)}")
    for end in x:
        if end is not None:
            layer._check_features(end, edge_index)
            refuse(end.dim() != 2, f"x is {list(end.shape)}")
    refuse(torch.is_autocast_enabled(x.x_src.device.type), "there is autocast")
    return reduce


def check_weight(weight: Any, x: Tensor, width: int) -> None:
    """Raises Refusal unless `weight` multiplies rows of `x` and nothing looks at the product."""
    refuse(not is_plain(weight) or weight.dtype != x.dtype, "weights are of another kind")
    refuse(weight.device != x.device or weight.shape[width] != x.shape[1], "weights do not fit")


def project(
    layer: FastLayer, x: Ends, edge_index: Any, size: Size, to_rows: Any, to_own: Any
) -> Tensor:
    """``to_rows(propagate(x)) + to_own(x of destinations)``; raises Refusal.

    Args:
        layer: reduces features without weights of edges.
        x: its features.
        edge_index, size: as for ``propagate``.
        to_rows, to_own: PyG's linear maps; the second only has no bias.
    """
    reduce = check_projection(layer, x, edge_index)
    source, target = x
    maps = [(to_rows, source)] + ([] if target is None else [(to_own, target)])
    for linear, rows in maps:
        refuse(type(linear) is not Linear or "forward" in linear.__dict__, "a map is the user's")
        refuse(has_hooks(linear), "there are hooks of a map")
        check_weight(linear.weight, rows, 1)
    bias = to_rows.bias
    refuse(bias is not None and not is_plain(bias), "a bias is of another kind")
    refuse(target is not None and to_own.bias is not None, "a map is the user's")
    self_weight = None if target is None else to_own.weight
    csc = layer._structure(edge_index, size, x, None)
    return run([csc], reduce, x, [to_rows.weight], self_weight, bias)


def run(
    structures: list[Csc],
    reduce: str,
    x: Ends,
    weights: list[Tensor],
    self_weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """The products, and what explain() says of them."""
    rows = rows_or_tensor(x.x_src, sum(csc.num_edges for csc in structures))
    if isinstance(rows, TableRows):
        note("features: read from the table, not gathered")
    own = None
    if self_weight is not None and x.x_dst is not None and not are_first_rows(x.x_dst, x.x_src):
        own = gathered(x.x_dst)
    out = spmm_linear(structures, reduce, rows, weights, self_weight, bias, self_x=own)
    for csc in structures:
        note(f"propagate: peergraph, {reduce} over {csc}")
    return out
