"""A labelled graph in memory, and its `.npz` file."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_KEYS = ("indptr", "indices", "y", "train_mask", "val_mask", "test_mask")
_OTHER_FORMATS = {
    "node_types": "a heterogeneous graph",
    "relation_names": "a knowledge graph",
    "t": "a temporal graph",
    "edge_index": "an edge list without labels",
}


@dataclass
class NodeGraph:
    """A graph for node classification: CSC of in-neighbours, features, labels, split.

    `indptr` int64 [N + 1], `indices` int32 [E]: the sources of the edges into a node; `x` [N, F]
    of a float dtype; `y` int64 [N], -1 where there is no label; masks bool [N]; `edge_type`
    uint8 [E] along `indices`. `directed` is false if every edge is stored both ways.
    """

    name: str
    indptr: Array
    indices: Array
    x: Array
    y: Array
    train_mask: Array
    val_mask: Array
    test_mask: Array
    class_names: list[str]
    directed: bool
    edge_type: Array | None = None
    edge_type_names: Sequence[str] = field(default_factory=list)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __str__(self) -> str:
        split = "/".join(str(int(m.sum())) for m in self._masks())
        kind = "directed, used both ways" if self.directed else "undirected"
        return (
            f"{self.name}: {self.num_nodes:,} nodes, {self.num_edges:,} edges ({kind}), "
            f"{self.x.shape[1]} {self.x.dtype} features, {self.num_classes} classes, "
            f"{split} for training/validation/test"
        )

    def _masks(self) -> tuple[Array, Array, Array]:
        return self.train_mask, self.val_mask, self.test_mask

    def check(self) -> None:
        """Raises ValueError naming the first part that does not fit the others."""
        n = self.num_nodes
        if n < 1 or self.indptr[0] != 0 or (np.diff(self.indptr) < 0).any():
            raise ValueError("indptr must rise from 0 and have one entry more than there are nodes")
        if self.indptr[-1] != self.num_edges:
            raise ValueError(
                f"indptr ends at {self.indptr[-1]}, but indices has {self.num_edges} entries"
            )
        if self.num_edges and (self.indices.min() < 0 or self.indices.max() >= n):
            raise ValueError(f"indices must be node ids below {n}")
        if self.x.ndim != 2 or len(self.x) != n:
            raise ValueError(f"x must have {n} rows, one a node, got shape {self.x.shape}")
        if self.y.shape != (n,) or self.y.min() < -1 or self.y.max() >= self.num_classes:
            raise ValueError(f"y must be [{n}] labels from -1 to {self.num_classes - 1}")
        for mask in self._masks():
            if mask.shape != (n,) or mask.dtype != bool or not mask.any():
                raise ValueError(f"masks must be bool [{n}], each with a node in it")
            if (self.y[mask] < 0).any():
                raise ValueError("a mask contains nodes without a label")


def random_split(y: Array, seed: int) -> tuple[Array, Array, Array]:
    """Bool masks over the labelled nodes: 60 % training, 20 % validation, 20 % test."""
    nodes = np.random.default_rng(seed).permutation(np.flatnonzero(y >= 0))
    bounds = [int(0.6 * len(nodes)), int(0.8 * len(nodes))]
    masks = np.zeros((3, len(y)), bool)
    for mask, part in zip(masks, np.split(nodes, bounds), strict=True):
        mask[part] = True
    return masks[0], masks[1], masks[2]


def save_npz(graph: NodeGraph, path: Path) -> None:
    """Writes `path` at once: a reader sees the old file, the new one or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {key: getattr(graph, key) for key in (*_KEYS, "x")}
    arrays["directed"] = np.array(graph.directed)
    arrays["num_classes"] = np.array(graph.num_classes)
    arrays["class_names"] = np.array(graph.class_names)
    if graph.edge_type is not None:
        arrays["edge_type"] = graph.edge_type
        arrays["edge_type_names"] = np.array(graph.edge_type_names)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load_npz(path: Path, *, name: str | None = None) -> NodeGraph:
    """Reads a homogeneous labelled graph.

    Sparse features (`x_indptr`, `x_indices`, `x_data`, `x_shape`) become dense float32 with rows
    of Euclidean length 1; empty rows stay empty. Dense features are taken as they are.

    Raises FileNotFoundError, and ValueError if the file is not such a graph.
    """
    with _open_npz(path) as file:
        return _read(file, path, name)


def check_npz(path: Path) -> None:
    """Raises what `load_npz` would, as far as the names of the file's arrays tell."""
    with _open_npz(path) as file:
        _check_keys(file, path)


@contextmanager
def _open_npz(path: Path) -> Iterator[Any]:
    with open(path, "rb") as handle:
        if not zipfile.is_zipfile(handle):
            raise ValueError(f"{path} is not a .npz file")
        try:
            with np.load(handle, allow_pickle=False) as file:
                yield file
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def _check_keys(file: Any, path: Path) -> None:
    for key, what in _OTHER_FORMATS.items():
        if key in file:
            raise ValueError(f"{path} holds {what}; the demo takes homogeneous labelled graphs")
    missing = [key for key in _KEYS if key not in file]
    if "x" not in file and "x_data" not in file:
        missing.append("x")
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: not a homogeneous labelled graph")


def _read(file: Any, path: Path, name: str | None) -> NodeGraph:
    _check_keys(file, path)
    y = file["y"].astype(np.int64, copy=False)
    num_classes = int(file["num_classes"]) if "num_classes" in file else int(y.max()) + 1
    class_names = (
        [str(c) for c in file["class_names"]]
        if "class_names" in file
        else [str(c) for c in range(num_classes)]
    )
    graph = NodeGraph(
        name=name or path.stem,
        indptr=file["indptr"],
        indices=file["indices"],
        x=file["x"] if "x" in file else _dense_features(file),
        y=y,
        train_mask=file["train_mask"],
        val_mask=file["val_mask"],
        test_mask=file["test_mask"],
        class_names=class_names,
        directed=bool(file["directed"]) if "directed" in file else True,
        edge_type=file.get("edge_type"),
        edge_type_names=[str(t) for t in file.get("edge_type_names", [])],
    )
    try:
        graph.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return graph


def _dense_features(file: Any) -> npt.NDArray[np.float32]:
    rows, columns = (int(n) for n in file["x_shape"])
    indptr, data = file["x_indptr"], file["x_data"].astype(np.float32)
    row = np.repeat(np.arange(rows), np.diff(indptr))
    norm = np.sqrt(np.bincount(row, weights=data.astype(np.float64) ** 2, minlength=rows))
    x = np.zeros((rows, columns), np.float32)
    x[row, file["x_indices"]] = data / norm[row]
    return x
