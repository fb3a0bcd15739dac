"""The processed folders of OGB's large-scale challenge: MAG240M and WikiKG90Mv2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peergraph.store.ingest.formats.saved_graphs import load_checkpoint
from peergraph.store.ingest.graph_files import EdgeFiles, GraphFiles, NodeFiles, Rows
from peergraph.store.ingest.read.arrays import NpyFile
from peergraph.store.input.source import EDGE, NODE, EdgeType, NodeType

_SEPARATOR = "___"
_TABLES = {"node_feat": "x", "node_label": "y", "node_year": "year"}
_TRIPLES = "train_hrt.npy"


def is_lsc(path: Path) -> bool:
    """Returns whether a folder is one of the challenge, or its folder ``processed``."""
    folder = _processed(path)
    return (folder / _TRIPLES).is_file() or any(folder.glob(f"*{_SEPARATOR}*/edge_index.npy"))


def lsc_files(path: Path) -> GraphFiles:
    """Returns the files of MAG240M (nodes and edges of several types) or WikiKG90Mv2 (triples).

    MAG240M: numbers of nodes without features come from ``meta.pt``. Tables are ``x``, ``y``,
    ``year``; unlabelled papers have NaN. WikiKG90Mv2: entities are nodes of one type with the table
    ``x``, the training triples are edges with the table ``edge_type``.

    Raises:
        ValueError: it is neither.
    """
    folder = _processed(path)
    if (folder / _TRIPLES).is_file():
        return _triples(folder)
    if not is_lsc(path):
        raise ValueError(f"{path} has no edges of OGB-LSC: no */edge_index.npy, no {_TRIPLES}")
    counts = _counts(folder)
    edges: dict[EdgeType, EdgeFiles] = {}
    for file in sorted(folder.glob(f"*{_SEPARATOR}*/edge_index.npy")):
        names = file.parent.name.split(_SEPARATOR)
        if len(names) != 3:
            raise ValueError(f"{file.parent}: expected <source>___<relation>___<destination>")
        edges[names[0], names[1], names[2]] = EdgeFiles(file)
    types = dict.fromkeys(t for s, _, d in edges for t in (s, d))
    nodes: dict[NodeType, NodeFiles] = {}
    for node_type in types:
        tables: dict[str, Any] = {}
        for file in sorted((folder / node_type).glob("*.npy")):
            name = _TABLES.get(file.stem, file.stem)
            tables[name] = Rows(file, nan="keep" if name == "y" else "error")
        nodes[node_type] = NodeFiles(num_nodes=counts.get(node_type), tables=tables)
    return GraphFiles(nodes, edges)


def _processed(path: Path) -> Path:
    return path / "processed" if (path / "processed").is_dir() else path


def _counts(folder: Path) -> dict[str, int]:
    """Returns the numbers in ``meta.pt``."""
    for file in (folder / "meta.pt", folder.parent / "meta.pt"):
        if file.is_file():
            meta = load_checkpoint(file, "file of counts")
            if not isinstance(meta, dict):
                raise ValueError(f"{file} is no file of counts, but a {type(meta).__name__}")
            return {str(name): n for name, n in meta.items() if isinstance(n, int)}
    return {}


def _triples(folder: Path) -> GraphFiles:
    file = NpyFile(folder / _TRIPLES)
    if len(file.shape) != 2 or file.shape[1] != 3:
        raise ValueError(f"{file.name} must be [triples, 3], is {list(file.shape)}")
    features = folder / "entity_feat.npy"
    count = _counts(folder).get("num_entities")
    tables = {"x": Rows(features)} if features.is_file() else {}
    edges = EdgeFiles(folder / _TRIPLES, source="0", destination="2", tables={"edge_type": "1"})
    return GraphFiles({NODE: NodeFiles(num_nodes=count, tables=tables)}, {EDGE: edges})
