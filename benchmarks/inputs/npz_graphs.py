"""Labelled graphs in memory, and their `.npz` files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data

Array = npt.NDArray[Any]

_KEYS = ("indptr", "indices", "y", "train_mask", "val_mask", "test_mask")
_SPARSE_KEYS = ("x_indptr", "x_indices", "x_shape")
_KINDS = {
    "b": "bool",
    "i": "integers",
    "u": "unsigned integers",
    "f": "floats",
    "U": "text",
}
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
    of a float dtype; `y` int64 [N], -1 where there is no label; masks bool [N].
    `directed` is false if every edge is stored both ways.
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


def load_npz(path: Path, *, name: str | None = None) -> NodeGraph:
    """Reads a homogeneous labelled graph.

    Sparse features (`x_indptr`, `x_indices`, `x_data`, `x_shape`) become dense float32 with rows
    of Euclidean length 1; empty rows stay empty. Dense features are taken as they are.

    Raises FileNotFoundError, and ValueError if the file is not such a graph.
    """
    with _open_npz(path) as file:
        return _read(file, path, name)


@contextmanager
def _open_npz(path: Path) -> Iterator[Any]:
    with open(path, "rb") as handle:
        if not zipfile.is_zipfile(handle):
            raise ValueError(f"{path} is not a .npz file")
        try:
            file = np.load(handle, allow_pickle=False)
        except Exception as error:  # as in _array
            raise ValueError(f"{path} is damaged: {error}") from error
        with file:
            yield file


def _check_keys(file: Any, path: Path) -> None:
    names = file.files
    for key, what in _OTHER_FORMATS.items():
        if key in names:
            raise ValueError(f"{path} holds {what}; expected a homogeneous labelled graph")
    missing = [key for key in _KEYS if key not in names]
    if "x_data" in names:
        missing += [key for key in _SPARSE_KEYS if key not in names and "x" not in names]
    elif "x" not in names:
        missing.append("x")
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: not a homogeneous labelled graph")


def _read(file: Any, path: Path, name: str | None) -> NodeGraph:
    _check_keys(file, path)
    y = _array(file, "y", path, "iu", 1).astype(np.int64, copy=False)
    num_classes = int(y.max(initial=-1)) + 1
    if "num_classes" in file.files:
        num_classes = int(_array(file, "num_classes", path, "iu", 0))
    class_names = [str(c) for c in range(num_classes)]
    if "class_names" in file.files:
        class_names = [str(c) for c in _array(file, "class_names", path, "U", 1)]
    train, val, test = (
        _array(file, f"{part}_mask", path, "b", 1) for part in ("train", "val", "test")
    )
    directed = bool(_array(file, "directed", path, "biu", 0)) if "directed" in file.files else True
    graph = NodeGraph(
        name=name or path.stem,
        indptr=_array(file, "indptr", path, "iu", 1),
        indices=_array(file, "indices", path, "iu", 1),
        x=_array(file, "x", path, "biuf", 2) if "x" in file.files else _dense_features(file, path),
        y=y,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        class_names=class_names,
        directed=directed,
    )
    try:
        graph.check()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return graph


def _array(file: Any, key: str, path: Path, kinds: str, dim: int) -> Array:
    """Returns an array of the file, of one of NumPy's kinds of dtypes. Raises ValueError naming the
    key.
    """
    try:
        array = file[key]
    except Exception as error:  # what zipfile and NumPy raise for damaged files is not documented
        raise ValueError(f"{path} is damaged: {key}: {error}") from error
    if not isinstance(array, np.ndarray):  # a member that is no array
        raise ValueError(f"{path} is damaged: {key} is no array")
    if array.dtype.kind not in kinds or array.ndim != dim:
        names = " or ".join(_KINDS[kind] for kind in kinds)
        raise ValueError(
            f"{path}: {key} must be {names} of {dim} dimensions, got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    return array


def _dense_features(file: Any, path: Path) -> npt.NDArray[np.float32]:
    indptr, columns_of = (_array(file, f"x_{k}", path, "iu", 1) for k in ("indptr", "indices"))
    data = _array(file, "x_data", path, "biuf", 1).astype(np.float32)
    shape = _array(file, "x_shape", path, "iu", 1)
    if len(shape) != 2 or len(indptr) != shape[0] + 1:
        raise ValueError(
            f"{path}: x_indptr must have one entry more than x_shape has rows, got {len(indptr)} "
            f"and {shape.tolist()}"
        )
    rows, columns = (int(n) for n in shape)
    counts = np.diff(indptr)
    if indptr[0] != 0 or (counts < 0).any() or not indptr[-1] == len(columns_of) == len(data):
        raise ValueError(
            f"{path}: x_indptr must rise from 0 to the lengths of x_indices and x_data"
        )
    if len(columns_of) and (columns_of.min() < 0 or columns_of.max() >= columns):
        raise ValueError(f"{path}: x_indices must be columns below {columns}")
    row = np.repeat(np.arange(rows), counts)
    norm = np.sqrt(np.bincount(row, weights=data.astype(np.float64) ** 2, minlength=rows))
    x = np.zeros((rows, columns), np.float32)
    x[row, columns_of] = data / norm[row]
    return x


def to_pyg(graph: NodeGraph) -> Data:
    """Returns a PyG `Data` with edge_index, x, y and masks.

    A directed graph's edges are used both ways: a pair linked in both directions has two edges
    each way.
    """
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
