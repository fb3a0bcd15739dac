"""Graphs that DGL or PyG saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peergraph.checkpoint_files import load_checkpoint
from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles
from peergraph.store.ingest.read.optional import OptionalModule
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType

_NAMES = ("data.pt", "geometric_data_processed.pt")  # PyG's, and those of OGB's PyG datasets


def dgl_files(path: Path) -> GraphFiles:
    """Returns the files of a graph that `dgl.save_graphs` wrote, with all its tables.

    The graph may be homogeneous or heterogeneous. DGL loads it into memory.

    Raises:
        ImportError: DGL cannot be imported.
        ValueError: the file has several graphs, or is none of DGL's.
    """
    dgl = OptionalModule("dgl", f"reading {path}")
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except dgl.DGLError as error:
        raise ValueError(f"{path} was not written by dgl.save_graphs: {error}") from None
    if len(graphs) != 1:
        raise ValueError(f"{path} has {len(graphs)} graphs, a store has one")
    graph = graphs[0]
    nodes = {
        kind: NodeFiles(num_nodes=graph.num_nodes(kind), tables=dict(graph.nodes[kind].data))
        for kind in graph.ntypes
    }
    edges = {
        tuple(kind): EdgeFiles(
            torch.stack(graph.edges(etype=kind, order="eid")), tables=dict(graph.edges[kind].data)
        )
        for kind in graph.canonical_etypes
    }
    return GraphFiles(nodes, edges)


def pyg_files(path: Path) -> GraphFiles | None:
    """Returns the graph of a processed file: tensors of one row per node or per edge are tables;
    others are left out. None: the folder has no such file. Nothing but tensors and PyG's own
    classes is unpickled.

    Args:
        path: the file, or a dataset's folder.

    Raises:
        ImportError: PyG is not installed.
        ValueError: it has several graphs, or no graph of PyG.
        NotImplementedError: edges are a SparseTensor.
    """
    places = (f / name for f in (path, path / "processed") for name in _NAMES)
    file = path if path.is_file() else next((p for p in places if p.is_file()), None)
    if file is None:
        return None
    package = OptionalModule("torch_geometric.data", f"reading {path}")
    graph_classes = package.HeteroData, package.Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    safe = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    content = load_checkpoint(file, "processed file of PyG", safe)
    data, slices = (content[0], content[1]) if isinstance(content, tuple) else (content, None)
    while isinstance(slices, Mapping) and slices:
        slices = next(iter(slices.values()))
    if isinstance(slices, Tensor) and slices.numel() != 2:
        raise ValueError(f"{file} has {slices.numel() - 1} graphs, a store has one")
    if isinstance(data, Mapping):
        is_hetero = any(isinstance(kind, tuple) for kind in data)
        data = graph_classes[0 if is_hetero else 1].from_dict(data)
    nodes: dict[NodeType, NodeFiles] = {}
    edges: dict[EdgeType, EdgeFiles] = {}
    for store in data.node_stores:
        count = store.num_nodes
        tables = {} if count is None else _tables(store, store.node_attrs())
        nodes[store._key or NODE] = NodeFiles(num_nodes=count, tables=tables)
    for store in data.edge_stores:
        edges[store._key or EDGE] = EdgeFiles(
            _edge_index(file, store), tables=_tables(store, store.edge_attrs())
        )
    if not edges:
        raise ValueError(f"{file} has no graph with edges")
    return GraphFiles(nodes, edges)


def _edge_index(file: Path, store: Any) -> Tensor:
    edge_index = store.get("edge_index")
    if isinstance(edge_index, Tensor):
        return edge_index.as_subclass(Tensor)
    if "adj_t" in store or "adj" in store:
        raise NotImplementedError(
            f"{file} has its edges as a SparseTensor: load it, call data.edge_index = "
            "torch.stack(data.adj_t.t().coo()[:2]), and save that"
        )
    raise ValueError(f"{file} has a part without edge_index")


def _tables(store: Any, names: list[str]) -> dict[str, Tensor]:
    """Returns the attributes that may be tables."""
    return {
        name: store[name]
        for name in names
        if name != "edge_index"
        and isinstance(store[name], Tensor)
        and store[name].dim()
        and store[name].layout == torch.strided
    }
