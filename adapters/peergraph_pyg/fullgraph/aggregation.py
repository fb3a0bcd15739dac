"""PyG's aggregation modules over the edges of a partitioned graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from peergraph.fullgraph import NodeIndex, PartitionedTensor, replicated

# Modules whose results depend on rows of other destinations, or on random numbers.
_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd


def aggregate(
    original: Callable[..., Any],
    module: nn.Module,
    x: Any,
    index: Any = None,
    ptr: Any = None,
    dim_size: int | None = None,
    dim: int = -2,
    **kwargs: Any,
) -> Any:
    """Calls an aggregation; of a partitioned graph, with this rank's edges.

    A rank holds all edges to its destinations, so an aggregation by destination is exact on each
    rank alone. Parameters of the module enter it so that their gradients are added up over ranks.

    Raises:
        NotImplementedError: the module has batch normalisation or dropout in it, or aggregates by
            source anything but sums and means.
    """
    if not isinstance(index, NodeIndex):
        return original(module, x, index=index, ptr=ptr, dim_size=dim_size, dim=dim, **kwargs)
    if not isinstance(x, PartitionedTensor) or x.partitioned_dim != dim % x.dim():
        raise TypeError(
            f"messages must be a partitioned tensor with a row for each edge in dimension {dim}, "
            f"got {type(x).__name__} {list(x.shape)}"
        )
    nodes = index.nodes
    if dim_size is not None and dim_size != nodes.size:
        raise ValueError(f"dim_size must be {nodes.size} as the {index.end}s, got {dim_size}")
    _check(module, index)
    group = nodes.group
    parameters = {name: replicated(value, group) for name, value in module.named_parameters()}
    rows = x.to_local()
    call = {"index": index.local_rows, "dim_size": index.num_local_rows, "dim": dim, **kwargs}
    if index.end == "source" and isinstance(module, MeanAggregation):
        sums: PartitionedTensor = index.add_to_nodes(SumAggregation()(rows, **call), dim)
        degree = index.structure.out_degrees().to(x.dtype).clamp(min=1)
        return sums / degree.view(-1, *[1] * (sums.dim() - 1 - dim % sums.dim()))
    found: Tensor = torch.func.functional_call(module, parameters, (rows,), call)
    return index.add_to_nodes(found, dim)


def _check(module: nn.Module, index: NodeIndex) -> None:
    if index.end == "source" and type(module) not in (SumAggregation, MeanAggregation):
        raise NotImplementedError(
            f"{type(module).__name__} with flow 'target_to_source' on a partitioned graph: a "
            "source's edges are on several ranks; use 'sum' or 'mean', or pass full_graph the "
            "reversed edges"
        )
    for part in module.modules():
        random = isinstance(part, _DROPOUTS) and part.training and part.p > 0
        if random or isinstance(part, _BATCH_NORMS):
            raise NotImplementedError(
                f"{type(part).__name__} within {type(module).__name__} on a partitioned graph; "
                "normalise or drop in `message` or after the layer"
            )
