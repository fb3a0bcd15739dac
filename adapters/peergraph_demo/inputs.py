"""The demo's graph as its options name it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from peergraph_demo.code_graph import load_code_graph
from peergraph_demo.graph import NodeGraph
from peergraph_demo.npz_file import check_npz, load_npz
from peergraph_demo.options import CODE, PRODUCTS, DemoOptions
from peergraph_demo.products import products_graph

if TYPE_CHECKING:
    from torch_geometric.data import Data


def prepare(options: DemoOptions) -> None:
    """What can be done or refused before ranks are started.

    Builds and caches the code graph; looks whether a file is a graph that the demo takes.

    Raises FileNotFoundError, ValueError.
    """
    if options.data == CODE:
        load_code_graph(rebuild=options.rebuild)
    elif options.data != PRODUCTS:
        check_npz(Path(options.data))


def load_graph(options: DemoOptions, *, progress: bool = True) -> NodeGraph:
    """Returns the graph that `options.data` names."""
    if options.data == CODE:
        return load_code_graph(progress=progress)
    if options.data == PRODUCTS:
        return products_graph(options.scale, seed=options.seed, progress=progress)
    return load_npz(Path(options.data))


def to_pyg(graph: NodeGraph) -> Data:
    """Returns a PyG `Data` with edge_index, x, y and masks.

    A directed graph's edges are used both ways: a pair linked in both directions has two edges
    each way.
    """
    from torch_geometric.data import Data

    degree = torch.from_numpy(graph.indptr).diff()
    source = torch.from_numpy(graph.indices).long()
    edge_index = torch.stack([source, torch.arange(graph.num_nodes).repeat_interleave(degree)])
    if graph.directed:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    return Data(
        edge_index=edge_index,
        x=torch.from_numpy(graph.x),
        y=torch.from_numpy(graph.y),
        train_mask=torch.from_numpy(graph.train_mask),
        val_mask=torch.from_numpy(graph.val_mask),
        test_mask=torch.from_numpy(graph.test_mask),
    )
