"""PyG's functions of edges on partitioned graphs.

Layers and users call them with ``edge_index`` or one of its rows. Those below are exact on a
partitioned graph; the others raise. Each replacement treats plain tensors as PyG does.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import LightGCN
from torch_geometric.nn.conv import FastRGCNConv, HGTConv, RGCNConv

from peergraph.aggregate import Csc
from peergraph.fullgraph import (
    EdgeCall,
    NodeIndex,
    PartitionedEdgeIndex,
    PartitionedStructure,
    PartitionedTensor,
    RowLayout,
    distribute,
    from_local,
    kept_ends,
    select_edge_rows,
    self_loop_mask,
    with_self_loops,
    without_self_loops,
)

from .. import compat
from ..everywhere import replace_everywhere
from ..nn.partitioned import split_weights
from . import weights
from .aggregation import aggregate
from .hgt import hgt
from .random_edges import dropout_edge, dropout_node, negative_sampling
from .weights import without_weights

Original = Callable[..., Any]

# They would change the edges and leave the values of a matrix behind.
_WITHOUT_WEIGHTS = (
    *("remove_self_loops", "add_self_loops", "add_remaining_self_loops", "get_laplacian"),
    *("dropout_edge", "dropout_node"),
)


def install() -> None:
    """Replaces PyG's functions wherever they were imported. The first call does."""
    if compat.full_graph_patches:
        return
    served: dict[str, Callable[..., Any]] = {
        "scatter": _scatter,
        "degree": _degree,
        "maybe_num_nodes": _maybe_num_nodes,
        "contains_self_loops": _contains_self_loops,
        "remove_self_loops": _remove_self_loops,
        "add_self_loops": _add_self_loops,
        "add_remaining_self_loops": _add_remaining_self_loops,
        "get_laplacian": _get_laplacian,
        "gcn_norm": _gcn_norm,
        "one_hot": _one_hot,
        "to_dense_batch": _to_dense_batch,
        "dropout_edge": dropout_edge,
        "dropout_node": dropout_node,
        "negative_sampling": negative_sampling,
    }
    replacements: dict[Any, Callable[..., Any]] = {
        compat.edge_function(name): (
            without_weights(function, name) if name in _WITHOUT_WEIGHTS else function
        )
        for name, function in served.items()
    }
    for name in compat.UNSERVED_FUNCTIONS:
        replacements[compat.edge_function(name)] = functools.partial(_refuse, name)
    replace_everywhere(compat.full_graph_patches, replacements)
    compat.full_graph_patches.replace(compat.Aggregation, "__call__", aggregate)
    for layer in (RGCNConv, FastRGCNConv):
        compat.full_graph_patches.replace(layer, "forward", _rgcn)
    compat.full_graph_patches.replace(LightGCN, "get_embedding", _light_gcn)
    compat.full_graph_patches.replace(LightGCN, "recommend", _recommend)
    compat.full_graph_patches.replace(compat.InvertibleModule, "_fn_apply", _apply_invertible)
    compat.full_graph_patches.replace(HGTConv, "forward", hgt)
    weights.install()


def _scatter(
    original: Original,
    src: Any,
    index: Any,
    dim: int = 0,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Any:
    if not isinstance(index, NodeIndex):
        return original(src, index, dim, dim_size, reduce)
    edges = _edge_tensor("src", src, index.structure, dim)
    _check_size(index, dim_size)
    if index.end == "source" and reduce == "mean":
        count = index.structure.out_degrees().to(src.dtype).clamp(min=1)
        sums = _scatter(original, src, index, dim, dim_size, "sum")
        return sums / count.view(-1, *[1] * (sums.dim() - 1 - dim % sums.dim()))
    if index.end == "source" and reduce not in ("sum", "add"):
        raise NotImplementedError(
            f"scatter(reduce={reduce!r}) to the sources of a partitioned edge_index: a source's "
            "edges are on several ranks; reduce 'sum' or 'mean', or pass "
            "full_graph the reversed edges"
        )
    return index.reduce_edges(functools.partial(original, reduce=reduce), edges, dim)


def _degree(original: Original, index: Any, num_nodes: int | None = None, dtype: Any = None) -> Any:
    if not isinstance(index, NodeIndex):
        return original(index, num_nodes, dtype)
    _check_size(index, num_nodes)
    structure = index.structure
    degrees = structure.out_degrees() if index.end == "source" else structure.in_degrees()
    return degrees.to(torch.get_default_dtype() if dtype is None else dtype)


def _maybe_num_nodes(original: Original, edge_index: Any, num_nodes: int | None = None) -> Any:
    if num_nodes is None and isinstance(edge_index, NodeIndex):
        return edge_index.nodes.size
    if num_nodes is None and isinstance(edge_index, PartitionedEdgeIndex):
        return _most_nodes(edge_index.structure)
    return original(edge_index, num_nodes)


def _contains_self_loops(original: Original, edge_index: Any) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index)
    return without_self_loops(edge_index.structure) is not edge_index.structure


def _remove_self_loops(original: Original, edge_index: Any, edge_attr: Any = None) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, edge_attr)
    structure = edge_index.structure
    rest = without_self_loops(structure)
    if rest is structure:
        return edge_index, edge_attr
    if edge_attr is not None:
        edge_attr = select_edge_rows(_edge_tensor("edge_attr", edge_attr, structure), rest)
    return PartitionedEdgeIndex(rest), edge_attr


def _add_self_loops(
    original: Original,
    edge_index: Any,
    edge_attr: Any = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, edge_attr, fill_value, num_nodes)
    structure = edge_index.structure
    loops = with_self_loops(structure, _num_loops(structure, num_nodes))
    if edge_attr is not None:
        rows = _loop_rows(edge_index, edge_attr, fill_value)
        edge_attr = loops.append(_edge_tensor("edge_attr", edge_attr, structure), rows)
    return PartitionedEdgeIndex(loops.structure), edge_attr


def _add_remaining_self_loops(
    original: Original,
    edge_index: Any,
    edge_attr: Any = None,
    fill_value: Any = None,
    num_nodes: Any = None,
) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(edge_index, edge_attr, fill_value, num_nodes)
    structure = edge_index.structure
    rest = without_self_loops(structure)
    loops = with_self_loops(rest, _num_loops(structure, num_nodes))
    if edge_attr is not None:
        edges = _edge_tensor("edge_attr", edge_attr, structure)
        of_loops = structure.on_edges(
            EdgeCall(
                _replace_loop_rows,
                destinations={"rows": _loop_rows(edge_index, edge_attr, fill_value)},
                edges={"edges": edges, "is_loop": self_loop_mask(structure)},
            )
        )
        edge_attr = loops.append(select_edge_rows(edges, rest), of_loops)
    return PartitionedEdgeIndex(loops.structure), edge_attr


def _replace_loop_rows(csc: Csc, rows: Tensor, edges: Tensor, is_loop: Tensor) -> Tensor:
    """Returns rows of destinations with the attribute of a loop, of several the last.

    As PyG does on the CPU.
    """
    replaced = rows.clone()
    replaced[kept_ends(csc)[1][is_loop]] = edges[is_loop]
    return replaced


def _get_laplacian(
    original: Original,
    edge_index: Any,
    edge_weight: Any = None,
    normalization: str | None = None,
    dtype: Any = None,
    num_nodes: int | None = None,
) -> Any:
    if isinstance(edge_index, PartitionedEdgeIndex):
        edge_index, edge_weight = _remove_self_loops(original, edge_index, edge_weight)
        if edge_weight is None:
            edge_weight = _ones(edge_index.structure, dtype)
    return original(edge_index, edge_weight, normalization, dtype, num_nodes)


def _gcn_norm(
    original: Original,
    edge_index: Any,
    edge_weight: Any = None,
    num_nodes: int | None = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: Any = None,
) -> Any:
    edge_index, edge_weight = split_weights(edge_index, edge_weight)
    if isinstance(edge_index, PartitionedEdgeIndex):
        if add_self_loops:
            edge_index, edge_weight = _add_remaining_self_loops(
                original, edge_index, edge_weight, 2.0 if improved else 1.0, num_nodes
            )
        if edge_weight is None:
            edge_weight = _ones(edge_index.structure, dtype)
        add_self_loops = False
    return original(edge_index, edge_weight, num_nodes, improved, add_self_loops, flow, dtype)


def _one_hot(
    original: Original, index: Any, num_classes: int | None = None, dtype: Any = None
) -> Any:
    if not isinstance(index, PartitionedTensor):
        return original(index, num_classes, dtype)
    classes = int(index.max()) + 1 if num_classes is None else num_classes
    is_class = index.unsqueeze(1) == torch.arange(classes, device=index.device)
    return is_class.to(torch.get_default_dtype() if dtype is None else dtype)


def _to_dense_batch(
    original: Original,
    x: Any,
    batch: Any = None,
    fill_value: float = 0.0,
    max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> Any:
    if not isinstance(x, PartitionedTensor):
        return original(x, batch, fill_value, max_num_nodes, batch_size)
    sizes = (max_num_nodes in (None, x.shape[0]), batch_size in (None, 1))
    if not all(sizes) or (batch is not None and bool((batch != 0).any())):
        raise NotImplementedError(
            "to_dense_batch of several graphs, or of other sizes, on a partitioned graph: all its "
            "nodes are one graph; of the edges of each node, call it in an Aggregation of a layer"
        )
    mask = torch.ones(x.row_layout.local_count, dtype=torch.bool, device=x.device)
    return x.unsqueeze(0), from_local(mask, x.row_layout).unsqueeze(0)


def _rgcn(original: Original, layer: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(layer, x, edge_index, edge_type)
    sources, nodes = edge_index.structure.source_layout, edge_index.structure.destination_layout
    if isinstance(x, tuple):
        x = (_rgcn_input(x[0], sources), _rgcn_input(x[1], nodes))
    else:
        x = _rgcn_input(x, sources)
    with _PartitionedZeros(nodes, layer.out_channels):
        return original(layer, x, edge_index, edge_type)


def _rgcn_input(x: Any, layout: RowLayout) -> Any:
    """Rows of nodes; their ids for None, which stands for embeddings in the layer.

    Trained features of all nodes, a plain tensor that is equal on all ranks, are partitioned.
    """
    if x is None:
        return from_local(layout.positions, layout)
    if isinstance(x, PartitionedTensor) or not isinstance(x, Tensor) or len(x) != layout.size:
        return x
    return distribute(x, layout)


def _light_gcn(original: Original, model: Any, edge_index: Any, edge_weight: Any = None) -> Any:
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(model, edge_index, edge_weight)
    rows = torch.nn.Module()
    rows.weight = distribute(model.embedding.weight, edge_index.structure.destination_layout)
    on_rows = copy.copy(model)
    on_rows._modules = {**model._modules, "embedding": rows}
    return original(on_rows, edge_index, edge_weight)


def _recommend(original: Original, model: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
    """As PyG's; every rank has the embeddings of all nodes, as it has those that are trained."""
    if not isinstance(edge_index, PartitionedEdgeIndex):
        return original(model, edge_index, *args, **kwargs)
    on_all = copy.copy(model)
    on_all.get_embedding = lambda *arguments: model.get_embedding(*arguments).full_tensor()
    return original(on_all, edge_index, *args, **kwargs)


def _apply_invertible(original: Original, layer: Any, args: Any, fn: Any, fn_inverse: Any) -> Any:
    """As the layer's `disable=True` on partitioned tensors, whose memory is not given back early.

    Results and gradients are the same; autograd keeps what the layer would compute again.
    """
    if layer.disable or not any(isinstance(part, PartitionedTensor) for part in args):
        return original(layer, args, fn, fn_inverse)
    out = fn(*args)
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


class _PartitionedZeros(TorchFunctionMode):
    """Makes zeros [nodes, columns], to which PyG's RGCNConv adds, partitioned as nodes are."""

    def __init__(self, nodes: RowLayout, columns: int) -> None:
        super().__init__()
        self.nodes, self.columns = nodes, columns

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and args == (self.nodes.size, self.columns):
            return from_local(
                torch.zeros(self.nodes.local_count, self.columns, **kwargs), self.nodes
            )
        return func(*args, **kwargs)


def _refuse(name: str, original: Original, *args: Any, **kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    if any(isinstance(value, (PartitionedEdgeIndex, NodeIndex)) for value in values):
        raise NotImplementedError(
            f"torch_geometric's {name} on a partitioned edge_index: call it before "
            "peergraph_pyg.full_graph, on the data's own edge_index"
        )
    return original(*args, **kwargs)


def _loop_rows(
    edge_index: PartitionedEdgeIndex, edge_attr: Any, fill_value: Any
) -> PartitionedTensor:
    """Returns [destinations, *features], PyG's attribute for a new loop of each destination."""
    structure = edge_index.structure
    edges = _edge_tensor("edge_attr", edge_attr, structure)
    if isinstance(fill_value, str):
        rows: PartitionedTensor = compat.edge_function("scatter")(
            edges, edge_index[1], 0, structure.num_destinations, fill_value
        )
        return rows
    layout = structure.destination_layout
    shape = (layout.local_count, *edges.shape[1:])
    if isinstance(fill_value, Tensor):
        value = fill_value.to(edges.device, edges.dtype)
        if value.dim() != edges.dim():
            value = value.unsqueeze(0)
        if value.requires_grad:
            raise NotImplementedError("fill_value that requires gradients, on a partitioned graph")
        return from_local(value.expand(shape).contiguous(), layout)
    number = 1.0 if fill_value is None else fill_value
    return from_local(torch.full(shape, number, dtype=edges.dtype, device=edges.device), layout)


def _ones(structure: PartitionedStructure, dtype: Any) -> PartitionedTensor:
    layout = structure.edge_layout
    return from_local(torch.ones(layout.local_count, dtype=dtype, device=structure.device), layout)


def _edge_tensor(
    name: str, value: Any, structure: PartitionedStructure, dim: int = 0
) -> PartitionedTensor:
    """Returns a partitioned tensor by edge; raises for anything else."""
    if not isinstance(value, PartitionedTensor):
        raise TypeError(
            f"{name} must be a partitioned tensor with a row for each edge, got "
            f"{type(value).__name__} {list(getattr(value, 'shape', []))}; "
            "peergraph.fullgraph.distribute takes this rank's rows of a tensor equal on all ranks"
        )
    is_by_edge = value.partitioned_dim == dim % value.dim()
    if not is_by_edge or not structure.edge_layout.same_rows(value.row_layout):
        raise ValueError(
            f"{name} must have the rows of the edges, {structure.edge_layout}, in dimension {dim}, "
            f"got {value.row_layout} in dimension {value.partitioned_dim}"
        )
    return value


def _check_size(index: NodeIndex, size: int | None) -> None:
    """Raises ValueError unless a result for all nodes is what the caller wants."""
    if size is None:  # PyG returns rows up to the last node that has an edge.
        size = int(index.max()) + 1 if index.numel() > 0 else 0
    if size != index.nodes.size:
        raise ValueError(
            f"the number of nodes must be {index.nodes.size} as the {index.end}s of the "
            f"partitioned edge_index, got {size}; pass dim_size or num_nodes"
        )


def _num_loops(structure: PartitionedStructure, num_nodes: Any) -> int:
    if isinstance(num_nodes, (tuple, list)):
        return int(min(num_nodes))
    if num_nodes is None:
        return _most_nodes(structure)
    return int(num_nodes)


def _most_nodes(structure: PartitionedStructure) -> int:
    return max(structure.num_sources, structure.num_destinations)
