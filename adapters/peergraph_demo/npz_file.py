"""The `.npz` file of a labelled graph."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from peergraph_demo.graph import Array, NodeGraph

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


def save_npz(graph: NodeGraph, path: Path) -> None:
    """Writes `path` at once: a reader sees the old file, the new one or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {key: getattr(graph, key) for key in (*_KEYS, "x")}
    arrays["directed"] = np.array(graph.directed)
    arrays["num_classes"] = np.array(graph.num_classes)
    arrays["class_names"] = np.array(graph.class_names)
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
            file = np.load(handle, allow_pickle=False)
        except Exception as error:  # as in _array
            raise ValueError(f"{path} is damaged: {error}") from error
        with file:
            yield file


def _check_keys(file: Any, path: Path) -> None:
    names = file.files
    for key, what in _OTHER_FORMATS.items():
        if key in names:
            raise ValueError(f"{path} holds {what}; the demo takes homogeneous labelled graphs")
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
