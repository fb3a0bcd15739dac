"""PyG's aggregation modules over the edges of a partitioned graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.aggr import (
    EquilibriumAggregation,
    MeanAggregation,
    QuantileAggregation,
    SumAggregation,
)

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
        NotImplementedError: the module has batch normalisation or dropout in it, aggregates by
            source anything but sums and means, or needs all destinations at once.
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

    num_added, added = _added_destinations(module, index)

    def run(rows: Tensor, index: Tensor, dim_size: int, dim: int, **parameters: Tensor) -> Tensor:
        if dim_size != size and any(
            isinstance(m, EquilibriumAggregation) for m in module.modules()
        ):
            raise NotImplementedError(
                "EquilibriumAggregation, whose regularisation is a mean over all destinations, on "
                "several ranks or chunks; use one rank and offload=False, or another aggregation"
            )
        values = {name.removeprefix("module."): value for name, value in parameters.items()}
        if num_added:
            ends = torch.tensor(added, device=index.device, dtype=index.dtype)
            shape = [len(added) if d == dim else size for d, size in enumerate(rows.shape)]
            rows = torch.cat([rows.new_zeros(shape), rows], dim)
            index = torch.cat([ends, index + num_added])
        call = {"index": index, "dim_size": num_added + dim_size, "dim": dim - rows.dim(), **kwargs}
        aggregated: Tensor = torch.func.functional_call(module, values, (rows,), call)
        return aggregated.narrow(dim, num_added, dim_size) if num_added else aggregated

    return index.reduce_edges(run, x, dim, parameters=parameters)


def _added_destinations(module: nn.Module, index: NodeIndex) -> tuple[int, list[int]]:
    """Destinations that come before those of each rank and chunk: their number, and their edges.

    They make results independent of which destinations a rank or a chunk has. Collective.

    - Quantiles fail if the first destination has no edges, which the user does not choose: they
      read the row before the first one. With two edges, nothing is read before the first row.
    - A module that pads all lists of edges to the longest one may use the padding, as an LSTM does:
      the first destination has as many edges as any one of the graph.
    """
    parts = list(module.modules())
    num_edges = 0
    if any(map(_pads, parts)):
        num_edges = int(index.structure.in_degrees().max())
    elif any(isinstance(part, QuantileAggregation) for part in parts):
        num_edges = 1
    return (2, [0] * num_edges + [1]) if num_edges else (0, [])


def _pads(module: nn.Module) -> bool:
    """Whether a module makes a dense batch, which is as long as the longest list of edges."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "to_dense_batch" in code.co_names


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
