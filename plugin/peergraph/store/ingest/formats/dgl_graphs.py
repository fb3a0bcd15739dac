"""Graphs that ``dgl.save_graphs`` wrote."""

from __future__ import annotations

from pathlib import Path

import torch

from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles
from peergraph.store.ingest.read.optional import OptionalModule
from peergraph.store.input.source import EDGE, NODE


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
    is_homogeneous = graph.ntypes == [NODE] and graph.canonical_etypes == [EDGE]
    nodes = {
        NODE if is_homogeneous else kind: NodeFiles(
            num_nodes=graph.num_nodes(kind), tables=dict(graph.nodes[kind].data)
        )
        for kind in graph.ntypes
    }
    edges = {
        tuple(kind): EdgeFiles(
            torch.stack(graph.edges(etype=kind, order="eid")), tables=dict(graph.edges[kind].data)
        )
        for kind in graph.canonical_etypes
    }
    return GraphFiles(nodes, edges)
