"""The private parts of DGL that this adapter uses, and the functions of DGL that it replaces.

Every use of a name that DGL does not document is listed here, or goes through a function of this
module. A test looks up all of these names in the installed DGL and names its version.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import dgl
from dgl import heterograph_index
from dgl.dataloading.dataloader import CollateWrapper
from dgl.frame import Frame, _LazyIndex
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from peergraph.integration import Patches

__all__ = ["PRIVATE_NAMES", "REPLACED", "WRITTEN_FOR", "CollateWrapper", "LazyIndex"]

WRITTEN_FOR = "1.1.3 and 2.1.0"
"""Versions of DGL that the adapter was tested with."""

LazyIndex = _LazyIndex
"""A selection of rows of a column that is a selection itself, not yet computed."""

REPLACED = (
    # Methods that change a graph in place, which detach its store (graph/store_of.py).
    "dgl:DGLGraph.add_nodes",
    "dgl:DGLGraph.add_edges",
    "dgl:DGLGraph.remove_nodes",
    "dgl:DGLGraph.remove_edges",
    # The constructor of graphs, for those over partitioned edges (fullgraph/graph.py).
    "dgl:DGLGraph.__init__",
    # Some edges of a partitioned graph (fullgraph/refusals.py).
    "dgl:edge_subgraph",
    # Functions that call users' functions (fullgraph/user_functions.py).
    "dgl.core:invoke_edge_udf",
    "dgl.core:invoke_udf_reduce",
    "dgl.core:invoke_node_udf",
    # Products by the type of each row (fullgraph/typed_products.py).
    "dgl.ops:gather_mm",
    "dgl.nn.pytorch.linear:gather_mm",
    # The function that hands tensors to the C library (backend/materialize.py).
    "dgl.backend:zerocopy_to_dgl_ndarray",
    # Kernels, and constructors of graph indices (backend/message_passing.py).
    "dgl.ops.spmm:gspmm",
    "dgl.ops:gspmm",
    "dgl.ops.sddmm:gsddmm",
    "dgl.ops:gsddmm",
    "dgl.ops.edge_softmax:edge_softmax_internal",
    "dgl.ops.edge_softmax:edge_softmax_hetero_internal",
    "dgl.backend:segment_reduce",
    "dgl.ops.segment:segment_softmax",
    "dgl.backend:segment_mm",
    "dgl.backend:gather_mm",
    "dgl.frame:gather_pinned_tensor_rows",
    "dgl.heterograph_index:create_unitgraph_from_coo",
    "dgl.heterograph_index:create_unitgraph_from_csr",
    "dgl.heterograph_index:create_heterograph_from_relations",
    "dgl.heterograph_index:HeteroGraphIndex.copy_to",
    "dgl.heterograph_index:HeteroGraphIndex.get_relation_graph",
    "dgl.storages:TensorStorage.fetch",
    # Samplers and loaders (loader/sampling.py).
    "dgl.dataloading:NeighborSampler.sample_blocks",
    "dgl.dataloading:LaborSampler.sample_blocks",
    "dgl.dataloading:DataLoader.__init__",
    "dgl.dataloading:DataLoader.__iter__",
    # Samplers of subgraphs (loader/subgraph_samplers.py).
    "dgl.dataloading:SAINTSampler.sample",
    "dgl.dataloading:ClusterGCNSampler.__init__",
    "dgl.dataloading.cluster_gcn:metis_partition_assignment",
    # Walks and negatives (loader/walks.py).
    "dgl.sampling:random_walk",
    "dgl.sampling.pinsage:random_walk",
    "dgl.sampling:node2vec_random_walk",
    "dgl.sampling:global_uniform_negative_sampling",
)
"""The functions of DGL that the adapter replaces, as ``module:name``."""

_SINCE_DGL_2 = (
    *("adjusted_homophily", "edge_label_informativeness", "node_label_informativeness"),
)

REFUSED = (
    # Changes of nodes, edges and types.
    *("dgl:add_reverse_edges", "dgl:batch", "dgl:block_to_graph", "dgl:compact_graphs"),
    *("dgl:edge_type_subgraph", "dgl:in_subgraph", "dgl:line_graph", "dgl:merge"),
    *("dgl:node_type_subgraph", "dgl:out_subgraph", "dgl:slice_batch", "dgl:to_bidirected"),
    *("dgl:adj_product_graph", "dgl:adj_sum_graph", "dgl:sort_csc_by_tag", "dgl:sort_csr_by_tag"),
    *("dgl:to_block", "dgl:to_heterogeneous", "dgl:to_homogeneous", "dgl:to_simple"),
    *("dgl:to_simple_graph", "dgl:unbatch", "dgl:metis_partition"),
    *("dgl:metis_partition_assignment", "dgl:partition_graph_with_halo"),
    # Files and other libraries.
    *("dgl:save_graphs", "dgl:to_cugraph", "dgl:to_networkx"),
    # Orders of nodes, and paths.
    *("dgl:bfs_edges_generator", "dgl:bfs_nodes_generator", "dgl:dfs_edges_generator"),
    *("dgl:dfs_labeled_edges_generator", "dgl:topological_nodes_generator"),
    *("dgl:prop_edges_dfs", "dgl:prop_nodes_bfs", "dgl:prop_nodes_topo", "dgl:shortest_dist"),
    # Values of the whole graph.
    *("dgl:laplacian_lambda_max", "dgl:norm_by_dst", "dgl:topk_edges", "dgl:topk_nodes"),
    *(f"dgl:{name}" for name in _SINCE_DGL_2 if hasattr(dgl, name)),
    *("dgl:GDC.__call__", "dgl:HeatKernel.__call__", "dgl:PPR.__call__"),
    # Samples.
    *("dgl.sampling:global_uniform_negative_sampling", "dgl.sampling:node2vec_random_walk"),
    *("dgl.sampling:random_walk", "dgl.sampling:sample_etype_neighbors"),
    *("dgl.sampling:sample_labors", "dgl.sampling:sample_neighbors"),
    *("dgl.sampling:sample_neighbors_biased", "dgl.sampling:sample_neighbors_fused"),
    *("dgl.sampling:select_topk", "dgl.sampling:PinSAGESampler.__init__"),
    *("dgl.sampling:RandomWalkNeighborSampler.__init__", "dgl.dataloading:SAINTSampler.sample"),
    *("dgl.dataloading:ClusterGCNSampler.__init__",),
)
"""Functions of DGL that partitioned graphs refuse by name (fullgraph/refusals.py)."""

PRIVATE_NAMES = (
    # Constructors of indices without a graph.
    "dgl.heterograph_index:create_unitgraph_from_coo",
    "dgl.heterograph_index:create_unitgraph_from_csr",
    "dgl.heterograph_index:create_heterograph_from_relations",
    "dgl.graph_index:from_coo",
    # Functions of the C library, called below.
    "dgl.heterograph_index:_CAPI_DGLHeteroGetCreatedFormats",
    "dgl.heterograph_index:_CAPI_DGLHeteroEdges",
    "dgl.heterograph_index:_CAPI_DGLHeteroGetAdj",
    "dgl.heterograph_index:_CAPI_DGLHeteroForkingPickle",
    "dgl.heterograph_index:_CAPI_DGLCreateHeteroPickleStates",
    "dgl.heterograph_index:_CAPI_DGLHeteroForkingUnpickle",
    # Methods that DeviceIndex borrows. DGLGraph checks `isinstance(index, HeteroGraphIndex)`, so
    # GraphIndex.__class__ claims to be that class (backend/graph_index.py).
    "dgl.heterograph_index:HeteroGraphIndex.bits_needed",
    "dgl.heterograph_index:HeteroGraphIndex.incidence_matrix",
    "dgl.heterograph_index:HeteroGraphIndex.adjacency_matrix_scipy",
    # Converters between torch's objects and the C library's.
    "dgl.backend:to_backend_ctx",
    "dgl.backend:from_dgl_nd",
    "dgl.backend:to_dgl_nd",
    "dgl.utils:to_dgl_context",
    "dgl.utils:toindex",
    "dgl.base:is_all",
    "dgl.ndarray:gpu",
    # Node and edge features (frames and their columns), and data loaders.
    "dgl.frame:Column",
    "dgl.frame:Frame.subframe",
    "dgl.frame:_LazyIndex",
    "dgl.dataloading.dataloader:CollateWrapper",
    "dgl.dataloading.dataloader:restore_parent_storage_columns",
    "dgl.heterograph:DGLBlock",
    # A graph over partitioned nodes and edges (fullgraph/).
    "dgl:DGLGraph._set_n_repr",
    "dgl:DGLGraph._set_e_repr",
    "dgl.view:HeteroNodeView",
    "dgl.udf:EdgeBatch",
    "dgl.udf:NodeBatch",
    # What layers give to `update_all` and `apply_edges` (nn/kernel_graph.py).
    "dgl.function.message:BinaryMessageFunction",
    "dgl.function.message:CopyMessageFunction",
    "dgl.function.reducer:SimpleReduceFunction",
)
"""Undocumented names of DGL that the adapter reads, as ``module:name``."""

PRIVATE_ATTRIBUTES = {
    "graph": ("_graph", "_node_frames", "_edge_frames", "_batch_num_nodes", "_batch_num_edges"),
    "index": ("_cache", "metagraph", "dtype", "ctx"),
    "frame": ("_columns", "_initializers", "_default_initializer"),
    "column": ("storage", "scheme", "index", "device", "deferred_dtype"),
}
"""Undocumented attributes of a graph, its index, its frames and their columns."""


def new_patches() -> Patches:
    """Makes an empty list of replaced functions of DGL."""
    return Patches("dgl", WRITTEN_FOR)


def find(name: str) -> tuple[Any, str]:
    """Returns the owner and the attribute of a name in :data:`REPLACED` or
    :data:`PRIVATE_NAMES`.
    """
    module, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    owner: Any = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    return owner, attribute


def frame_columns(frame: Frame) -> dict[str, Any]:
    """Returns the columns of a frame by name, unlike ``frame[name]`` without reading their
    values.
    """
    columns: dict[str, Any] = frame._columns
    return columns


def created_formats(index: Any) -> set[str]:
    """Returns the sparse formats that DGL's own index has in memory."""
    return set(heterograph_index._CAPI_DGLHeteroGetCreatedFormats(index))


def coo_of(index: Any, etype: int) -> tuple[Tensor, Tensor]:
    """Returns sources and destinations of a non-empty relation in the order of edge ids, without a
    copy.

    The C library is called directly: DGL's method makes several other calls, whose time a block of
    a mini-batch, used once, does not pay back.
    """
    ends = heterograph_index._CAPI_DGLHeteroEdges(index, etype, "eid")
    return _tensor(ends(0)), _tensor(ends(1))


def csr_of(index: Any, etype: int, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets, columns and edge ids of a non-empty relation, without a copy; see :func:`coo_of`.

    Args:
        index: DGL's own index.
        etype: the relation.
        transposed: whether rows are destinations, not sources.
    """
    parts = heterograph_index._CAPI_DGLHeteroGetAdj(index, etype, transposed, "csr")
    indptr, indices, ids = (_tensor(parts(part)) for part in range(3))
    return indptr, indices, ids


def pickle_index(graph: dgl.DGLGraph) -> tuple[int, Any, list[Tensor]]:
    """Returns the version, metadata and arrays of a graph's index in DGL's format for child
    processes.
    """
    states = heterograph_index._CAPI_DGLHeteroForkingPickle(graph._graph)
    return states.version, states.meta, [dgl.backend.from_dgl_nd(array) for array in states.arrays]


def unpickle_index(version: int, meta: Any, arrays: list[Any]) -> Any:
    """Makes an index over arrays, without a copy, from the results of :func:`pickle_index`."""
    states = heterograph_index._CAPI_DGLCreateHeteroPickleStates(
        version, meta, [dgl.backend.to_dgl_nd(array) for array in arrays]
    )
    index = heterograph_index._CAPI_DGLHeteroForkingUnpickle(states)
    # DGL pickles this in place of the arrays. In the other process, materialize.py maps them.
    index._forking_pk_state = (version, meta, arrays)
    return index


def _tensor(array: Any) -> Tensor:
    return from_dlpack(array.to_dlpack())
