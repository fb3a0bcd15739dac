"""OGB's datasets of nodes and links, and those of its large-scale challenge (LSC)."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from peergraph.checkpoint_files import load_checkpoint
from peergraph.store.ingest.graph_files import CsvFormat, EdgeFiles, GraphFiles, NodeFiles, Rows
from peergraph.store.ingest.read.arrays import NpyFile, npz_names
from peergraph.store.ingest.values.arrow_arrays import Array
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType

_PLAIN = CsvFormat(header=False)
_TABLES = {"node_feat": "x", "node_label": "y", "edge_feat": "edge_attr"}
"""PyG's names of tables, by those of OGB."""
_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_SEPARATOR = "___"


def ogb_files(path: Path) -> GraphFiles | None:
    """Returns the files of a dataset of OGB, homogeneous or heterogeneous, of text or of arrays;
    None: it is none. Tables have PyG's names (``x``, ``y``, ``edge_attr``); splits by node become
    masks.

    Args:
        path: the dataset's folder (with ``raw``, and ``split`` if there is one), or ``raw``.

    Raises:
        ValueError: it has several graphs.
    """
    raw = path / "raw" if (path / "raw").is_dir() else path
    if (raw / "triplet-type-list.csv.gz").is_file():
        return _several_types(path, raw)
    if (raw / "data.npz").is_file():
        return _arrays(path, raw)
    if not (raw / "edge.csv.gz").is_file():
        return None
    num_nodes = int(_one_graph(raw, _read(raw / "num-node-list.csv.gz"))[0])
    node_tables = _tables(raw, "node") | _masks(path, None, num_nodes)
    nodes = NodeFiles(num_nodes=num_nodes, tables=node_tables)
    return GraphFiles({NODE: nodes}, {EDGE: _edges(raw)})


def lsc_files(path: Path) -> GraphFiles | None:
    """Returns the files of MAG240M (nodes and edges of several types) or WikiKG90Mv2 (triples);
    None: it is neither.

    MAG240M: numbers of nodes without features come from ``meta.pt``. Tables are ``x``, ``y``,
    ``year``; unlabelled papers have NaN. WikiKG90Mv2: entities are nodes of one type with the table
    ``x``, the training triples are edges with the table ``edge_type``.
    """
    folder = path / "processed" if (path / "processed").is_dir() else path
    triples, features = folder / "train_hrt.npy", folder / "entity_feat.npy"
    counts: dict[str, int] = {}
    for file in (folder.parent / "meta.pt", folder / "meta.pt"):
        if file.is_file():
            meta = load_checkpoint(file, "file of counts")
            if not isinstance(meta, dict):
                raise ValueError(f"{file} is no file of counts, but a {type(meta).__name__}")
            counts = {str(name): n for name, n in meta.items() if isinstance(n, int)}
    if triples.is_file():
        shape = NpyFile(triples).shape
        if len(shape) != 2 or shape[1] != 3:
            raise ValueError(f"{triples} must be [triples, 3], is {list(shape)}")
        tables = {"x": Rows(features)} if features.is_file() else {}
        links = EdgeFiles(triples, source="0", destination="2", tables={"edge_type": "1"})
        entities = NodeFiles(num_nodes=counts.get("num_entities"), tables=tables)
        return GraphFiles({NODE: entities}, {EDGE: links})
    edges: dict[EdgeType, EdgeFiles] = {}
    for file in sorted(folder.glob(f"*{_SEPARATOR}*/edge_index.npy")):
        names = file.parent.name.split(_SEPARATOR)
        if len(names) != 3:
            raise ValueError(f"{file.parent}: expected <source>___<relation>___<destination>")
        edges[names[0], names[1], names[2]] = EdgeFiles(file)
    nodes = {
        node_type: NodeFiles(
            num_nodes=counts.get(node_type),
            tables={
                name: Rows(file, nan="keep" if name == "y" else "error")
                for file in sorted((folder / node_type).glob("*.npy"))
                for name in [{**_TABLES, "node_year": "year"}.get(file.stem, file.stem)]
            },
        )
        for node_type in dict.fromkeys(t for s, _, d in edges for t in (s, d))
    }
    return GraphFiles(nodes, edges) if edges else None


def _arrays(path: Path, raw: Path) -> GraphFiles:
    archive, labels = raw / "data.npz", raw / "node-label.npz"
    num_nodes = int(_one_graph(raw, NpyFile(f"{archive}:num_nodes_list")[:]))
    tables: dict[str, dict[str, Any]] = {"node": {}, "edge": {}}
    for name in npz_names(archive):
        if name.startswith(("node_", "edge_")) and name != "edge_index":
            tables[name[:4]][_TABLES.get(name, name)] = Rows(f"{archive}:{name}")
    if labels.is_file():
        # Nodes that no split has are not labelled.
        tables["node"]["y"] = Rows(f"{labels}:{npz_names(labels)[0]}", nan="keep")
    nodes = NodeFiles(num_nodes=num_nodes, tables=tables["node"] | _masks(path, None, num_nodes))
    edges = EdgeFiles(f"{archive}:edge_index", tables=tables["edge"])
    return GraphFiles({NODE: nodes}, {EDGE: edges})


def _several_types(path: Path, raw: Path) -> GraphFiles:
    file = raw / "num-node-dict.csv.gz"
    names, counts = _read(file, str)[0], _one_graph(raw, _read(file, header_lines=1))
    nodes: dict[NodeType, NodeFiles] = {}
    for node_type, count in zip(map(str, names), map(int, counts), strict=True):
        tables: dict[str, Any] = {}
        for folder in sorted(raw.glob("node*")):
            tables |= _tables(folder / node_type, "node")
        masks = _masks(path, node_type, count)
        nodes[node_type] = NodeFiles(num_nodes=count, tables=tables | masks)
    edges: dict[EdgeType, EdgeFiles] = {}
    for source, relation, destination in _read(raw / "triplet-type-list.csv.gz", str).tolist():
        folder = raw / "relations" / _SEPARATOR.join((source, relation, destination))
        edges[source, relation, destination] = _edges(folder)
    return GraphFiles(nodes, edges)


def _edges(folder: Path) -> EdgeFiles:
    return EdgeFiles([folder / "edge.csv.gz"], csv=_PLAIN, tables=_tables(folder, "edge"))


def _tables(folder: Path, what: str) -> dict[str, Any]:
    """Returns the tables of nodes or edges: ``node-feat.csv.gz``, ``node_year.csv.gz`` and so
    on.
    """
    tables: dict[str, Any] = {}
    for file in sorted(folder.glob(f"{what}?*.csv.gz")):
        name = file.name.removesuffix(".csv.gz")
        nan: Any = "keep" if name == "node-label" else "error"
        tables[_TABLES.get(name.replace("-", "_"), name)] = Rows(file, nan=nan, csv=_PLAIN)
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
