"""What GAT's and GATv2's layers share when they run in one pass over the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc, attention_fits

from .layer import Ends, FastLayer, Size, refuse


def attention_over(
    layer: FastLayer, x: Ends, edge_index: Any, size: Size
) -> tuple[Csc, int | None]:
    """The structure, and how many nodes have self loops beside it; None: the edges as they are.

    Raises Refusal for what takes another path.
    """
    refuse(layer._check_settings() != "sum", f"aggr is {layer.aggr}")
    layer._check_steps("propagate", "edge_updater")
    refuse(layer.dropout > 0 and layer.training, "there is dropout of attention")
    source = x.x_src
    layer._check_features(source, edge_index)
    refuse(source.dim() != 2, f"x is {list(source.shape)}")
    refuse(torch.is_autocast_enabled(source.device.type), "there is autocast")
    # A replica of DataParallel has no parameters, but tensors in their place.
    dtype = (layer.att if hasattr(layer, "att") else layer.att_src).dtype
    refuse(dtype != source.dtype, f"x is {source.dtype} and weights {dtype}")
    heads = source.new_empty(0, layer.heads, layer.out_channels)
    refuse(not attention_fits(heads), f"{layer.heads} heads of {layer.out_channels} do not fit")
    refuse(size is not None and None in size, "size is not all given")
    csc = layer._structure(edge_index, size, x, None)
    if not layer.add_self_loops:
        return csc, None
    return csc, min(csc.num_sources, csc.num_destinations)


def finish_attention(layer: FastLayer, out: Tensor, target: Tensor | None) -> Tensor:
    """What comes after the sums: heads side by side or their mean, residual, bias."""
    out = out.flatten(1) if layer.concat else out.mean(dim=1)
    if layer.res is not None and target is not None:
        out = out + layer.res(target)
    return out if layer.bias is None else out + layer.bias


def with_weights(out: Tensor, by_edges: Callable[[], Any], wanted: bool | None) -> Any:
    """The result, with the weights of edges where they are asked for.

    These are computed beside it, so that asking for them does not change the result.
    """
    return (out, by_edges()[1]) if wanted else out
