"""DGL's message passing on devices that its C library was not built for, by Peergraph's kernels.

DGL's Python code (``update_all``, ``apply_edges``, ``multi_update_all``, user-defined functions,
``edge_softmax``, ``segment_reduce``, ``gather_mm``, all layers) ends in a few functions that call
the C library. Those are replaced by functions that look at where the graph is, and leave all that
the C library can do to it.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import dgl
import dgl.backend as F
import torch
from dgl.base import is_all
from dgl.heterograph_index import HeteroGraphIndex
from dgl.storages import TensorStorage
from torch import Tensor

from . import kernels
from .device_index import DeviceIndex, is_device_index
from .edge_list import Relation, relation_of
from .replacing import Replacements

_SETTINGS = ("auto", "always")
_setting = os.environ.get("PEERGRAPH_DGL_KERNELS", "auto")

_CACHE = "peergraph"

_replacements = Replacements()


def use_kernels(setting: str) -> None:
    """Says which graphs Peergraph's kernels serve; also by PEERGRAPH_DGL_KERNELS.

    Args:
        setting: ``"auto"``, those on devices that DGL's C library was not built for, or
            ``"always"``, those on the CPU too.

    Raises:
        ValueError: another setting.
    """
    global _setting
    if setting not in _SETTINGS:
        raise ValueError(f"setting: expected one of {', '.join(_SETTINGS)}, got {setting!r}")
    _setting = setting


@functools.cache
def library_has_cuda() -> bool:
    """Whether DGL's C library was built with CUDA."""
    return bool(dgl.ndarray.gpu(0).exist)


def is_foreign(device: torch.device) -> bool:
    """Whether DGL's C library cannot have a graph on `device`."""
    return device.type != "cpu" and not (device.type == "cuda" and library_has_cuda())


def install_where_needed() -> None:
    """As :func:`install`, but where DGL's C library was built with CUDA."""
    if not library_has_cuda():
        install()


def install() -> None:
    """Replaces the functions of DGL that need its C library; :func:`uninstall` puts them back.

    Does nothing the second time.

    Raises:
        ValueError: PEERGRAPH_DGL_KERNELS is set to something unknown.
    """
    use_kernels(_setting)
    if _replacements:
        return
    for module_name, name, replacement in _REPLACEMENTS:
        module = importlib.import_module(module_name)
        _replacements.replace(module, name, replacement)
    _replacements.replace(HeteroGraphIndex, "copy_to", _copy_to)
    _replacements.replace(HeteroGraphIndex, "get_relation_graph", _get_relation_graph)
    _replacements.replace(TensorStorage, "fetch", _fetch)


def uninstall() -> None:
    """Puts DGL's own functions back. Graphs on a GPU that are still there stop working."""
    _replacements.undo()


def relations_of(index: Any) -> list[Relation]:
    """The edges of any graph by relation; those of DGL's own index are copied once, and kept."""
    if is_device_index(index):
        made: list[Relation] = index.relations
        return made
    if _CACHE not in index._cache:
        index._cache[_CACHE] = [
            relation_of(index, etype) for etype in range(index.number_of_etypes())
        ]
    kept: list[Relation] = index._cache[_CACHE]
    return kept


def _relations(index: Any) -> list[Relation] | None:
    """The edges of a graph that Peergraph's kernels serve, else None."""
    if is_device_index(index):
        return relations_of(index)
    served = _setting == "always" and F.to_backend_ctx(index.ctx).type == "cpu"
    return relations_of(index) if served else None


def _typed(index: Any, relations: list[Relation]) -> list[tuple[int, int, Relation]]:
    """Relations with the types of their ends."""
    return [(*index.metagraph.find_edge(i), relation) for i, relation in enumerate(relations)]


def _is_ours(tensor: Tensor) -> bool:
    return _setting == "always" or is_foreign(tensor.device)


def _gspmm(dgls: Any, g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Any:
    relations = _relations(g._graph)
    if relations is None:
        return dgls(g, op, reduce_op, lhs_data, rhs_data)
    if len(relations) == 1:
        return kernels.spmm(relations[0], op, reduce_op, lhs_data, rhs_data)
    typed = _typed(g._graph, relations)
    lhs = [None] * g._graph.number_of_ntypes() if lhs_data is None else lhs_data
    rhs = [None] * len(relations) if rhs_data is None else rhs_data
    return kernels.spmm_of_types(typed, op, reduce_op, lhs, rhs)


def _gsddmm(
    dgls: Any,
    g: Any,
    op: str,
    lhs_data: Any,
    rhs_data: Any,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Any:
    relations = _relations(g._graph)
    if relations is None:
        return dgls(g, op, lhs_data, rhs_data, lhs_target, rhs_target)
    if len(relations) == 1:
        return kernels.sddmm(relations[0], op, lhs_data, rhs_data, lhs_target, rhs_target)

    typed = _typed(g._graph, relations)
    return kernels.sddmm_of_types(typed, op, lhs_data, rhs_data, lhs_target, rhs_target)


def _edge_softmax(
    dgls: Any, gidx: Any, logits: Any, eids: Any = dgl.base.ALL, norm_by: str = "dst"
) -> Any:
    relations = _relations(gidx)
    if relations is None:
        return dgls(gidx, logits, eids=eids, norm_by=norm_by)
    edges = None if is_all(eids) else eids
    return kernels.softmax(relations[0], logits, edges, norm_by)


def _edge_softmax_hetero(dgls: Any, gidx: Any, eids: Any, norm_by: str, *logits: Any) -> Any:
    relations = _relations(gidx)
    if relations is None:
        return dgls(gidx, eids, norm_by, *logits)
    if not is_all(eids):
        raise NotImplementedError("eids of edge_softmax in a graph of several relations")
    return kernels.softmax_of_types(_typed(gidx, relations), logits, norm_by)


def _segment_reduce(dgls: Any, op: str, x: Tensor, offsets: Tensor) -> Any:
    return kernels.segment_reduce(op, x, offsets) if _is_ours(x) else dgls(op, x, offsets)


def _segment_mm(dgls: Any, a: Tensor, b: Tensor, seglen_a: Tensor) -> Any:
    return kernels.segment_mm(a, b, seglen_a) if _is_ours(a) else dgls(a, b, seglen_a)


def _gather_mm(
    dgls: Any, a: Tensor, b: Tensor, idx_a: Tensor | None = None, idx_b: Tensor | None = None
) -> Any:
    return kernels.gather_mm(a, b, idx_a, idx_b) if _is_ours(a) else dgls(a, b, idx_a, idx_b)


def _copy_to(dgls: Any, index: Any, ctx: Any) -> Any:
    device = F.to_backend_ctx(ctx)
    return DeviceIndex.of(index, device) if is_foreign(device) else dgls(index, ctx)


def _get_relation_graph(dgls: Any, index: Any, etype: int) -> Any:
    """The same structure is another object at every call; what is kept with it is not."""
    part = dgls(index, etype)
    part._cache = index._cache.setdefault((_CACHE, int(etype)), part._cache)
    return part


def _from_coo(
    dgls: Any,
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    row: Any,
    col: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not (isinstance(row, Tensor) and is_foreign(row.device)):
        return dgls(num_ntypes, num_src, num_dst, row, col, *args, **kwargs)
    return DeviceIndex.unit(num_ntypes, Relation(num_src, num_dst, row, col))


def _from_csr(
    dgls: Any,
    num_ntypes: int,
    num_src: int,
    num_dst: int,
    indptr: Any,
    indices: Any,
    edge_ids: Any,
    formats: Any,
    transpose: bool = False,
) -> Any:
    if not (isinstance(indptr, Tensor) and is_foreign(indptr.device)):
        return dgls(num_ntypes, num_src, num_dst, indptr, indices, edge_ids, formats, transpose)
    rows, columns = (num_dst, num_src) if transpose else (num_src, num_dst)
    grouped = Relation(columns, rows, indices, indptr=indptr).in_order(edge_ids)
    return DeviceIndex.unit(num_ntypes, grouped if transpose else grouped.reverse())


def _from_relations(dgls: Any, metagraph: Any, rel_graphs: Any, num_nodes_per_type: Any) -> Any:
    if not any(is_device_index(index) for index in rel_graphs):
        return dgls(metagraph, rel_graphs, num_nodes_per_type)
    return DeviceIndex.joined(metagraph, rel_graphs, num_nodes_per_type)


def _gather_pinned(dgls: Any, tensor: Tensor, rows: Tensor) -> Any:
    if not is_foreign(rows.device):
        return dgls(tensor, rows)
    return tensor[rows.cpu()].to(rows.device, non_blocking=True)


def _fetch(
    dgls: Any, storage: Any, indices: Tensor, device: Any, pin_memory: Any = False, **kwargs: Any
) -> Any:
    """Rows of a tensor of the CPU for a batch on a GPU, which no kernel of DGL's gathers."""
    if is_foreign(indices.device) and storage.storage.device.type == "cpu":
        indices = indices.cpu()
    return dgls(storage, indices, device, bool(pin_memory), **kwargs)


_REPLACEMENTS: list[tuple[str, str, Callable[..., Any]]] = [
    ("dgl.ops.spmm", "gspmm", _gspmm),
    ("dgl.ops", "gspmm", _gspmm),
    ("dgl.ops.sddmm", "gsddmm", _gsddmm),
    ("dgl.ops", "gsddmm", _gsddmm),
    ("dgl.ops.edge_softmax", "edge_softmax_internal", _edge_softmax),
    ("dgl.ops.edge_softmax", "edge_softmax_hetero_internal", _edge_softmax_hetero),
    ("dgl.backend", "segment_reduce", _segment_reduce),
    ("dgl.backend", "segment_mm", _segment_mm),
    ("dgl.backend", "gather_mm", _gather_mm),
    ("dgl.frame", "gather_pinned_tensor_rows", _gather_pinned),
    ("dgl.heterograph_index", "create_unitgraph_from_coo", _from_coo),
    ("dgl.heterograph_index", "create_unitgraph_from_csr", _from_csr),
    ("dgl.heterograph_index", "create_heterograph_from_relations", _from_relations),
]
