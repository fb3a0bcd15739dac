"""PyG's aggregation modules over the edges of a partitioned graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import MeanAggregation, QuantileAggregation, SumAggregation

from peergraph.fullgraph import NodeIndex, PartitionedTensor

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
    size = index.nodes.size
    if dim_size is not None and dim_size != size:
        raise ValueError(f"dim_size must be {size} as the {index.end}s, got {dim_size}")
    _check(module, index)
    # With a dot in their names, parameters are none of the other arguments.
    parameters = {f"module.{name}": value for name, value in module.named_parameters()}
    if index.end == "source" and isinstance(module, MeanAggregation):
        sums = aggregate(original, SumAggregation(), x, index, ptr, dim_size, dim)
        degree = index.structure.out_degrees().to(x.dtype).clamp(min=1)
        return sums / degree.view(-1, *[1] * (sums.dim() - 1 - dim % sums.dim()))

    # Quantiles fail if the first destination has no edges: they read the row before the first one.
    # The user does not choose the first destination of a rank or of a chunk.
    num_added = int(any(isinstance(part, QuantileAggregation) for part in module.modules()))

    def run(rows: Tensor, index: Tensor, dim_size: int, dim: int, **parameters: Tensor) -> Tensor:
        values = {name.removeprefix("module."): value for name, value in parameters.items()}
        if num_added:
            # One destination comes before the others. It has two edges: if there are no other
            # edges, quantiles of the other destinations read the edge before the last one.
            shape = [2 if d == dim else size for d, size in enumerate(rows.shape)]
            rows = torch.cat([rows.new_zeros(shape), rows], dim)
            index = torch.cat([index.new_zeros(2), index + 1])
        call = {"index": index, "dim_size": num_added + dim_size, "dim": dim - rows.dim(), **kwargs}
        aggregated: Tensor = torch.func.functional_call(module, values, (rows,), call)
        return aggregated.narrow(dim, num_added, dim_size) if num_added else aggregated

    return index.reduce_edges(run, x, dim, parameters=parameters)


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
