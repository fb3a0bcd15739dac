"""Runs DGL's message passing on Peergraph's kernels, where DGL's C library has no support.

DGL's Python code (``update_all``, ``apply_edges``, ``multi_update_all``, user-defined functions,
``edge_softmax``, ``segment_reduce``, ``gather_mm``, all layers) calls the C library through a few
functions. This module replaces these functions. Each replacement looks at the device of the graph
and calls DGL's function for devices that the C library supports.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import dgl
import dgl.backend as F
import torch
from dgl.base import is_all
from dgl.heterograph_index import HeteroGraphIndex
from dgl.storages import TensorStorage
from torch import Tensor

from peergraph.fullgraph import PartitionedTensor

from ..compat import new_patches
from ..fullgraph.listed_edges import sddmm_of_lists
from ..fullgraph.readout import reduce_all_rows, softmax_all_rows
from . import kernels
from .device_index import DeviceIndex, is_device_index
from .edge_list import EdgeList, Edges, edge_list_of
from .graph_index import is_graph_index

_SETTINGS = ("auto", "always")
_setting = "auto"

_CACHE = "peergraph"

_patches = new_patches()


def use_kernels(setting: str) -> None:
    """Selects the graphs that Peergraph's kernels serve.

    Args:
        setting: ``"auto"`` for graphs on devices that DGL's C library was not built for, or
            ``"always"`` for graphs on the CPU as well.

    Raises:
        ValueError: unknown setting.
    """
    global _setting
    if setting not in _SETTINGS:
        raise ValueError(f"setting: expected one of {', '.join(_SETTINGS)}, got {setting!r}")
    _setting = setting


@functools.cache
def library_has_cuda() -> bool:
    """Returns whether DGL's C library was built with CUDA."""
    return bool(dgl.ndarray.gpu(0).exist)


def is_unsupported_by_dgl(device: torch.device) -> bool:
    """Returns whether DGL's C library was not built for `device`."""
    return device.type != "cpu" and not (device.type == "cuda" and library_has_cuda())


def install_where_needed() -> None:
    """Calls :func:`install` unless DGL's C library was built with CUDA."""
    if not library_has_cuda():
        install()


def install() -> None:
    """Replaces the functions of DGL that call its C library. Idempotent; see :func:`uninstall`."""
    if _patches:
        return
    for module_name, name, replacement in _REPLACEMENTS:
        module = importlib.import_module(module_name)
        _patches.replace(module, name, replacement)
    _patches.replace(HeteroGraphIndex, "copy_to", _copy_to)
    _patches.replace(HeteroGraphIndex, "get_relation_graph", _get_relation_graph)
    _patches.replace(TensorStorage, "fetch", _fetch)


def uninstall() -> None:
    """Restores DGL's own functions. Existing graphs on a GPU stop working."""
    _patches.undo()


def edge_lists_of(index: Any) -> list[Edges]:
    """Returns the edges of a graph by relation; those of DGL's own index are copied once and
    cached.
    """
    if is_graph_index(index):
        edge_lists: list[Edges] = index.edge_lists
        return edge_lists
    if _CACHE not in index._cache:
        index._cache[_CACHE] = [
            edge_list_of(index, etype) for etype in range(index.number_of_etypes())
        ]
    cached: list[Edges] = index._cache[_CACHE]
    return cached


def _served_edge_lists(index: Any) -> list[Edges] | None:
    """Returns the edges by relation if Peergraph's kernels serve the graph, else None."""
    if is_graph_index(index):
        return edge_lists_of(index)
    served = _setting == "always" and F.to_backend_ctx(index.ctx).type == "cpu"
    return edge_lists_of(index) if served else None


def _with_types(index: Any, relations: list[Edges]) -> list[kernels.TypedEdges]:
    return [(*index.metagraph.find_edge(i), edges) for i, edges in enumerate(relations)]


def _serves(tensor: Tensor) -> bool:
    if isinstance(tensor, PartitionedTensor):
        return True
    return _setting == "always" or is_unsupported_by_dgl(tensor.device)


def _gspmm(original: Any, g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Any:
    relations = _served_edge_lists(g._graph)
    if relations is None:
        return original(g, op, reduce_op, lhs_data, rhs_data)
    if len(relations) == 1:
        return kernels.spmm(relations[0], op, reduce_op, lhs_data, rhs_data)
    typed = _with_types(g._graph, relations)
    lhs = [None] * g._graph.number_of_ntypes() if lhs_data is None else lhs_data
    rhs = [None] * len(relations) if rhs_data is None else rhs_data
    return kernels.spmm_by_type(typed, op, reduce_op, lhs, rhs)


def _gsddmm(
    original: Any,
    g: Any,
    op: str,
    lhs_data: Any,
    rhs_data: Any,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Any:
    relations = _served_edge_lists(g._graph)
    if isinstance(lhs_data, PartitionedTensor) or isinstance(rhs_data, PartitionedTensor):
        edges = edge_lists_of(g._graph)[0]
        if isinstance(edges, EdgeList):
            return sddmm_of_lists(edges, op, lhs_data, rhs_data, lhs_target, rhs_target)
    if relations is None:
        return original(g, op, lhs_data, rhs_data, lhs_target, rhs_target)
    if len(relations) == 1:
        return kernels.sddmm(relations[0], op, lhs_data, rhs_data, lhs_target, rhs_target)

    typed = _with_types(g._graph, relations)
    return kernels.sddmm_by_type(typed, op, lhs_data, rhs_data, lhs_target, rhs_target)


def _edge_softmax(
    original: Any, gidx: Any, logits: Any, eids: Any = dgl.base.ALL, norm_by: str = "dst"
) -> Any:
    relations = _served_edge_lists(gidx)
    if relations is None:
        return original(gidx, logits, eids=eids, norm_by=norm_by)
    edges = None if is_all(eids) else eids
    return kernels.softmax(relations[0], logits, edges, norm_by)


def _edge_softmax_hetero(original: Any, gidx: Any, eids: Any, norm_by: str, *logits: Any) -> Any:
    relations = _served_edge_lists(gidx)
    if relations is None:
        return original(gidx, eids, norm_by, *logits)
    if not is_all(eids):
        raise NotImplementedError("eids of edge_softmax in a graph of several relations")
    return kernels.softmax_by_type(_with_types(gidx, relations), logits, norm_by)


def _segment_reduce(original: Any, op: str, x: Tensor, offsets: Tensor) -> Any:
    if isinstance(x, PartitionedTensor):
        return reduce_all_rows(op, x, offsets)
    return kernels.segment_reduce(op, x, offsets) if _serves(x) else original(op, x, offsets)


def _segment_softmax(original: Any, seglen: Tensor, value: Tensor) -> Any:
    if isinstance(value, PartitionedTensor):
        return softmax_all_rows(seglen, value)
    return original(seglen, value)


def _segment_mm(original: Any, a: Tensor, b: Tensor, seglen_a: Tensor) -> Any:
    return kernels.segment_mm(a, b, seglen_a) if _serves(a) else original(a, b, seglen_a)


def _gather_mm(
    original: Any, a: Tensor, b: Tensor, idx_a: Tensor | None = None, idx_b: Tensor | None = None
) -> Any:
    return kernels.gather_mm(a, b, idx_a, idx_b) if _serves(a) else original(a, b, idx_a, idx_b)


def _copy_to(original: Any, index: Any, ctx: Any) -> Any:
    device = F.to_backend_ctx(ctx)
    return (
        DeviceIndex.copy_of(index, device)
        if is_unsupported_by_dgl(device)
        else original(index, ctx)
    )


def _get_relation_graph(original: Any, index: Any, etype: int) -> Any:
    """Shares one cache among the objects that DGL makes of the same relation at every call."""
    part = original(index, etype)
    part._cache = index._cache.setdefault((_CACHE, int(etype)), part._cache)
    return part


def _from_coo(
    original: Any,
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    row: Any,
    col: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not (isinstance(row, Tensor) and is_unsupported_by_dgl(row.device)):
        return original(num_ntypes, num_src, num_dst, row, col, *args, **kwargs)
    return DeviceIndex.unit(num_ntypes, EdgeList(num_src, num_dst, row, col))


def _from_csr(
    original: Any,
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    indptr: Any,
    indices: Any,
    edge_ids: Any,
    formats: Any,
    transpose: bool = False,
) -> Any:
    if not (isinstance(indptr, Tensor) and is_unsupported_by_dgl(indptr.device)):
        return original(num_ntypes, num_src, num_dst, indptr, indices, edge_ids, formats, transpose)
    rows, columns = (num_dst, num_src) if transpose else (num_src, num_dst)
    grouped = EdgeList(columns, rows, indices, indptr=indptr).permute(edge_ids)
    return DeviceIndex.unit(num_ntypes, grouped if transpose else grouped.reverse())


def _from_relations(original: Any, metagraph: Any, rel_graphs: Any, num_nodes_per_type: Any) -> Any:
    if not any(is_device_index(index) for index in rel_graphs):
        return original(metagraph, rel_graphs, num_nodes_per_type)
    return DeviceIndex.join(metagraph, rel_graphs, num_nodes_per_type)


def _gather_pinned(original: Any, tensor: Tensor, rows: Tensor) -> Any:
    if not is_unsupported_by_dgl(rows.device):
        return original(tensor, rows)
    return tensor[rows.cpu()].to(rows.device, non_blocking=True)


def _fetch(
    original: Any,
    storage: Any,
    indices: Tensor,
    device: Any,
    pin_memory: Any = False,
    **kwargs: Any,
) -> Any:
    """Gathers rows of a CPU tensor for a batch on a GPU on the CPU; DGL has no kernel for it."""
    if is_unsupported_by_dgl(indices.device) and storage.storage.device.type == "cpu":
        indices = indices.cpu()
    return original(storage, indices, device, bool(pin_memory), **kwargs)


_REPLACEMENTS: list[tuple[str, str, Callable[..., Any]]] = [
    ("dgl.ops.spmm", "gspmm", _gspmm),
    ("dgl.ops", "gspmm", _gspmm),
    ("dgl.ops.sddmm", "gsddmm", _gsddmm),
    ("dgl.ops", "gsddmm", _gsddmm),
    ("dgl.ops.edge_softmax", "edge_softmax_internal", _edge_softmax),
    ("dgl.ops.edge_softmax", "edge_softmax_hetero_internal", _edge_softmax_hetero),
    ("dgl.backend", "segment_reduce", _segment_reduce),
    ("dgl.ops.segment", "segment_softmax", _segment_softmax),
    ("dgl.backend", "segment_mm", _segment_mm),
    ("dgl.backend", "gather_mm", _gather_mm),
    ("dgl.frame", "gather_pinned_tensor_rows", _gather_pinned),
    ("dgl.heterograph_index", "create_unitgraph_from_coo", _from_coo),
    ("dgl.heterograph_index", "create_unitgraph_from_csr", _from_csr),
    ("dgl.heterograph_index", "create_heterograph_from_relations", _from_relations),
]
