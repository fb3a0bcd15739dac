"""The graph of a seed, plain or partitioned: for PyG with one node type or two, and for DGL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import peergraph_pyg
from tests.fullgraph.fuzz.report import Configuration

CLASSES = 3
RELATIONS = (("a", "to", "a"), ("a", "at", "b"), ("b", "of", "a"))


def plain_graph(seed: int) -> Data:
    """A plain graph: some nodes without edges, self loops, ten rows or more."""
    draw = np.random.default_rng(seed)
    nodes, features = int(draw.integers(10, 31)), int(draw.integers(2, 7))
    edges = _edges(draw, nodes - 1, nodes - 1, int(draw.integers(nodes, 4 * nodes)))
    count = edges.shape[1]
    data = Data(edge_index=edges, num_nodes=nodes)
    data.x = torch.from_numpy(draw.normal(size=(nodes, features)))
    data.y = torch.from_numpy(draw.integers(0, CLASSES, nodes))
    data.n_id = torch.arange(nodes)
    for name in ("train_mask", "val_mask"):
        data[name] = torch.from_numpy(draw.random(nodes) < 0.5)
        data[name][: nodes // 8 + 1] = True
    data.edge_weight = torch.from_numpy(draw.random(count) + 0.1)
    data.edge_attr = torch.from_numpy(draw.normal(size=(count, 2)))
    data.edge_mask = torch.from_numpy(draw.random(count) < 0.8)
    return data


def graph_names(seed: int, where: Configuration, is_plain: bool) -> dict[str, Any]:
    """The names of a graph that programs use. Collective if it is partitioned."""
    options: dict[str, Any] = {}
    if where.chunks:
        options |= {"offload": True, "num_chunks": where.chunks}
    data = plain_graph(seed)
    for name in ("x", "edge_weight", "edge_attr"):
        data[name] = data[name].to(getattr(torch, where.dtype))
    if where.graph == "dgl":
        return _dgl_names(data, options, is_plain)
    if where.device == "cuda":
        options["device"] = f"cuda:{torch.cuda.current_device()}"
    if where.graph == "typed":
        return _typed_names(_with_second_type(data, seed), options, is_plain)
    data = data if is_plain else peergraph_pyg.full_graph(data, **options)
    return {"data": data, **_rows(data), "edge_index": data.edge_index}


def _rows(of_nodes: Any) -> dict[str, Any]:
    names = {"x": "x", "y": "y", "n_id": "n_id", "mask": "train_mask"}
    return {name: of_nodes[key] for name, key in names.items()}


def _with_second_type(data: Data, seed: int) -> HeteroData:
    draw = np.random.default_rng([seed, 3])
    nodes, others = data.num_nodes, int(draw.integers(3, 20))
    typed = HeteroData()
    for key, value in data.items():
        if key != "num_nodes":
            typed[RELATIONS[0] if key.startswith("edge") else "a"][key] = value
    typed["b"].x = torch.from_numpy(draw.normal(size=(others, data.x.shape[1]))).to(data.x.dtype)
    typed[RELATIONS[1]].edge_index = _edges(draw, nodes, others - 1, 2 * nodes)
    typed[RELATIONS[2]].edge_index = _edges(draw, others, nodes - 1, 2 * nodes)
    return typed


def _typed_names(data: HeteroData, options: dict[str, Any], is_plain: bool) -> dict[str, Any]:
    data = data if is_plain else peergraph_pyg.full_graph(data, **options)
    of_edges = data[RELATIONS[0]]
    edges = {name: of_edges[name] for name in ("edge_weight", "edge_attr", "edge_mask")}
    return {
        "data": SimpleNamespace(val_mask=data["a"].val_mask, **edges),
        **_rows(data["a"]),
        "z": data["b"].x,
        "edges": data.edge_index_dict,
        "edge_index": of_edges.edge_index,
    }


def _dgl_names(data: Data, options: dict[str, Any], is_plain: bool) -> dict[str, Any]:
    import peergraph_dgl  # so that DGL can be imported

    # isort: split

    import dgl

    g = dgl.graph((data.edge_index[0], data.edge_index[1]), num_nodes=data.num_nodes)
    for key, value in data.items():
        if key not in ("num_nodes", "edge_index"):
            (g.edata if key.startswith("edge") else g.ndata)[key] = value
    g = g if is_plain else peergraph_dgl.full_graph(g, **options)
    edges = {name: g.edata[name] for name in ("edge_weight", "edge_attr", "edge_mask")}
    return {
        "data": SimpleNamespace(val_mask=g.ndata["val_mask"], **edges),
        **_rows(g.ndata),
        "g": g,
        "dgl": dgl,
        "fn": dgl.function,
    }


def _edges(draw: np.random.Generator, sources: int, targets: int, count: int) -> Tensor:
    """Distinct edges in a random order."""
    ends = np.stack([draw.integers(0, sources, count), draw.integers(0, targets, count)], 1)
    ends = np.unique(ends, axis=0)
    return torch.from_numpy(ends[draw.permutation(len(ends))].T.copy())
