"""OGB's raw datasets of nodes and links: ``edge.csv.gz`` and others, or ``data.npz``."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peergraph.store.ingest.graph_files import (
    CsvFormat,
    EdgeFiles,
    GraphFiles,
    NanPolicy,
    NodeFiles,
    Rows,
)
from peergraph.store.ingest.read.arrays import NpyFile, npz_names
from peergraph.store.ingest.values.arrow_arrays import Array
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType

_PLAIN = CsvFormat(header=False)
_TABLES = {"node-feat": "x", "node-label": "y", "edge-feat": "edge_attr"}
"""Names of files, and PyG's names of tables."""
_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_SEPARATOR = "___"


def is_ogb(path: Path) -> bool:
    """Returns whether a folder is a dataset of OGB, or its folder ``raw``."""
    raw = _raw(path)
    names = ("edge.csv.gz", "data.npz", "triplet-type-list.csv.gz")
    return any((raw / name).is_file() for name in names)


def ogb_files(path: Path) -> GraphFiles:
    """Returns the files of a dataset of OGB, homogeneous or heterogeneous, of text or of arrays.
    Tables have PyG's names (``x``, ``y``, ``edge_attr``); splits by node become masks.

    Args:
        path: the dataset's folder (with ``raw``, and ``split`` if there is one), or ``raw``.

    Raises:
        ValueError: it is none, or has several graphs.
    """
    raw = _raw(path)
    if not is_ogb(path):
        raise ValueError(f"{path} is no raw dataset of OGB: no edge.csv.gz, data.npz or triplets")
    if (raw / "triplet-type-list.csv.gz").is_file():
        return _heterogeneous(path, raw)
    if (raw / "data.npz").is_file():
        return _arrays(path, raw)
    num_nodes = int(_one_graph(raw, _read(raw / "num-node-list.csv.gz"))[0])
    node_tables = _tables(raw, "node") | _masks(path, None, num_nodes)
    nodes = NodeFiles(num_nodes=num_nodes, tables=node_tables)
    edge_tables = _tables(raw, "edge")
    edges = EdgeFiles([raw / "edge.csv.gz"], csv=_PLAIN, tables=edge_tables)
    return GraphFiles({NODE: nodes}, {EDGE: edges})


def _raw(path: Path) -> Path:
    return path / "raw" if (path / "raw").is_dir() else path


def _arrays(path: Path, raw: Path) -> GraphFiles:
    archive = raw / "data.npz"
    names = npz_names(archive)
    counts = NpyFile(archive, "num_nodes_list")
    num_nodes = int(_one_graph(raw, counts[:]))
    node_tables: dict[str, Any] = {}
    edge_tables: dict[str, Any] = {}
    for name in names:
        table = _TABLES.get(name.replace("_", "-"), name)
        if name.startswith("node_"):
            node_tables[table] = Rows(f"{archive}:{name}")
        elif name.startswith("edge_") and name != "edge_index":
            edge_tables[table] = Rows(f"{archive}:{name}")
    labels = raw / "node-label.npz"
    if labels.is_file():
        # Nodes that no split has are not labelled.
        node_tables["y"] = Rows(f"{labels}:{npz_names(labels)[0]}", nan="keep")
    node_tables |= _masks(path, None, num_nodes)
    nodes = NodeFiles(num_nodes=num_nodes, tables=node_tables)
    edges = EdgeFiles(f"{archive}:edge_index", tables=edge_tables)
    return GraphFiles({NODE: nodes}, {EDGE: edges})


def _heterogeneous(path: Path, raw: Path) -> GraphFiles:
    file = raw / "num-node-dict.csv.gz"
    names, counts = _read(file, str)[0], _one_graph(raw, _read(file, header_lines=1))
    nodes: dict[NodeType, NodeFiles] = {}
    for node_type, count in zip(map(str, names), map(int, counts), strict=True):
        tables: dict[str, Any] = {}
        for folder in sorted(raw.glob("node*")):
            if (folder / node_type).is_dir():
                tables |= _tables(folder / node_type, "node")
        nodes[node_type] = NodeFiles(
            num_nodes=count, tables=tables | _masks(path, node_type, count)
        )
    edges: dict[EdgeType, EdgeFiles] = {}
    for source, relation, destination in _read(raw / "triplet-type-list.csv.gz", str).tolist():
        folder = raw / "relations" / _SEPARATOR.join((source, relation, destination))
        edges[source, relation, destination] = EdgeFiles(
            [folder / "edge.csv.gz"], csv=_PLAIN, tables=_tables(folder, "edge")
        )
    return GraphFiles(nodes, edges)


def _tables(folder: Path, what: str) -> dict[str, Any]:
    """Returns the tables of nodes or edges: ``node-feat.csv.gz``, ``node_year.csv.gz`` and so
    on.
    """
    tables: dict[str, Any] = {}
    for file in sorted(folder.glob(f"{what}*.csv.gz")):
        name = file.name.removesuffix(".csv.gz")
        if name != what:
            nan: NanPolicy = "keep" if name == "node-label" else "error"
            tables[_TABLES.get(name, name)] = Rows(file, nan=nan, csv=_PLAIN)
    return tables


def _masks(path: Path, node_type: NodeType | None, num_nodes: int) -> dict[str, Any]:
    """Returns masks of the splits by node. Splits of links (``.pt``) are not read."""
    splits = sorted(file.parent for file in (path / "split").glob("*/**/train.csv.gz"))
    folders = [f for f in splits if node_type is None or f.name == node_type]
    if not folders:
        return {}
    if len(folders) > 1:
        raise ValueError(f"{path / 'split'} has several splits: leave one of {folders}")
    masks = {}
    for name, table in _SPLITS.items():
        ids = _read(folders[0] / f"{name}.csv.gz").reshape(-1)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
            raise ValueError(f"{folders[0] / name}.csv.gz has ids that no node has")
        masks[table] = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
        masks[table][torch.from_numpy(ids)] = True
    return masks


def _one_graph(path: Path, counts: Array) -> Array:
    """Returns the numbers of nodes of a dataset's only graph, from those of all graphs."""
    if len(counts) != 1:
        raise ValueError(f"{path} has {len(counts)} graphs, a store has one")
    return np.asarray(counts[0])


def _read(path: Path, dtype: Any = np.int64, header_lines: int = 0) -> Array:
    """Returns the rows ``[n, columns]`` of a file of integers or names; all are held."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a file without rows
            options: Any = {"delimiter": ",", "ndmin": 2, "skiprows": header_lines}
            return np.asarray(np.loadtxt(path, dtype, comments=None, **options))
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
