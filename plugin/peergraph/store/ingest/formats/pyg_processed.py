"""Processed files of PyG: one ``Data`` or ``HeteroData``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peergraph.store.ingest.formats.checkpoint import load_checkpoint
from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles
from peergraph.store.ingest.read.optional import require
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType

_NAMES = ("data.pt", "geometric_data_processed.pt")  # PyG's, and those of OGB's PyG datasets
_STRUCTURE = ("edge_index", "adj_t", "adj")


def processed_file(path: Path) -> Path | None:
    """Returns the file in a dataset's folder, or in its folder ``processed``."""
    for folder in (path, path / "processed"):
        for name in _NAMES:
            if (folder / name).is_file():
                return folder / name
    return None


def pyg_files(path: Path) -> GraphFiles:
    """Returns the graph of a processed file: tensors of one row per node or per edge are tables;
    others are left out. Nothing but tensors and PyG's own classes is unpickled.

    Args:
        path: the file, or a dataset's folder.

    Raises:
        ImportError: PyG is not installed.
        FileNotFoundError: the folder has no processed file.
        ValueError: it has several graphs, or no graph of PyG.
        NotImplementedError: edges are a SparseTensor.
    """
    file = path if path.is_file() else processed_file(path)
    if file is None:
        raise FileNotFoundError(f"{path} has none of {', '.join(_NAMES)}")
    require("torch_geometric", f"reading {path}")
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import (
        BaseStorage,
        EdgeStorage,
        GlobalStorage,
        NodeStorage,
    )

    safe = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    held = load_checkpoint(file, "processed file of PyG", safe)
    data, slices = (held[0], held[1]) if isinstance(held, tuple) else (held, None)
    if not isinstance(data, Mapping):
        data = data.to_dict()
    _check_one_graph(file, slices)
    if "edge_index" in data or any(name in data for name in _STRUCTURE):
        return _homogeneous(file, data)
    return _heterogeneous(file, data)


def _check_one_graph(file: Path, slices: Any) -> None:
    while isinstance(slices, Mapping) and slices:
        slices = next(iter(slices.values()))
    if isinstance(slices, Tensor) and slices.numel() != 2:
        raise ValueError(f"{file} has {slices.numel() - 1} graphs, a store has one")


def _homogeneous(file: Path, data: Mapping[str, Any]) -> GraphFiles:
    edge_index = _edge_index(file, data)
    num_edges = edge_index.size(1)
    count = _num_nodes(data)
    if count is None:
        count = int(edge_index.max()) + 1 if num_edges else 0
    node_tables, edge_tables = {}, {}
    for name, value in data.items():
        rows = _rows(name, value)
        # As PyG tells them apart: by the name where both numbers are equal.
        if rows == num_edges and (rows != count or "edge" in name):
            edge_tables[name] = value
        elif rows == count:
            node_tables[name] = value
    nodes = NodeFiles(num_nodes=count, tables=node_tables)
    return GraphFiles({NODE: nodes}, {EDGE: EdgeFiles(edge_index, tables=edge_tables)})


def _heterogeneous(file: Path, data: Mapping[Any, Any]) -> GraphFiles:
    nodes: dict[NodeType, NodeFiles] = {}
    edges: dict[EdgeType, EdgeFiles] = {}
    for kind, values in data.items():
        if not isinstance(values, Mapping) or kind == "_global_store":
            continue
        if isinstance(kind, tuple):
            edge_index = _edge_index(file, values)
            tables = _tables(values, edge_index.size(1))
            edges[kind] = EdgeFiles(edge_index, tables=tables)
        else:
            count = _num_nodes(values)
            tables = {} if count is None else _tables(values, count)
            nodes[kind] = NodeFiles(num_nodes=count, tables=tables)
    if not edges:
        raise ValueError(f"{file} has no graph with edges")
    return GraphFiles(nodes, edges)


def _edge_index(file: Path, values: Mapping[str, Any]) -> Tensor:
    edge_index = values.get("edge_index")
    if isinstance(edge_index, Tensor):
        return edge_index.as_subclass(Tensor)
    if any(values.get(name) is not None for name in ("adj_t", "adj")):
        raise NotImplementedError(
            f"{file} has its edges as a SparseTensor: load it, call data.edge_index = "
            "torch.stack(data.adj_t.t().coo()[:2]), and save that"
        )
    raise ValueError(f"{file} has a part without edge_index")


def _num_nodes(values: Mapping[str, Any]) -> int | None:
    count = values.get("num_nodes")
    if isinstance(count, int):
        return count
    for name in ("x", "y", "train_mask", "n_id", "batch"):
        rows = _rows(name, values.get(name))
        if rows is not None:
            return rows
    return None


def _tables(values: Mapping[str, Any], rows: int) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if _rows(name, value) == rows}


def _rows(name: str, value: Any) -> int | None:
    """Returns the number of rows of a tensor that may be a table."""
    if not isinstance(value, Tensor) or value.dim() == 0 or name in _STRUCTURE:
        return None
    return value.size(0) if value.layout == torch.strided else None
