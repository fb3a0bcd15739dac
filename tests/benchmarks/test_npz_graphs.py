"""Labelled graphs of .npz files, which benchmarks read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.inputs.npz_graphs import load_npz
from tests.named_case import named_cases

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"


def small(**changes: Any) -> dict[str, Any]:
    """A graph of 4 nodes and 3 edges; None leaves a key out."""
    masks = np.eye(4, dtype=bool)
    arrays = {
        "indptr": np.array([0, 1, 1, 3, 3]),
        "indices": np.array([1, 0, 3], np.int32),
        "x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "y": np.array([0, 1, 1, -1]),
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
        "num_classes": np.array(2),
        "directed": np.array(True),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_dense_file(tmp_path: Path) -> None:
    graph = load_npz(write(tmp_path / "small.npz", small()))
    assert graph.name == "small"
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (4, 3, 2)
    assert graph.class_names == ["0", "1"]
    assert graph.directed
    assert (graph.x == np.arange(8).reshape(4, 2)).all()
    assert "4 nodes, 3 edges (directed, used both ways)" in str(graph)


def test_sparse_features_become_unit_rows_and_empty_rows_stay(tmp_path: Path) -> None:
    arrays = small(
        x=None,
        x_indptr=np.array([0, 2, 2, 3, 3]),
        x_indices=np.array([0, 2, 1], np.int32),
        x_data=np.array([3, 4, 7], np.float32),
        x_shape=np.array([4, 3]),
    )
    graph = load_npz(write(tmp_path / "sparse.npz", arrays))
    expected = np.array([[0.6, 0, 0.8], [0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(graph.x, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None, "x": None}, "has no y, x: not a homogeneous labelled graph"),
        ({"node_types": np.array(["a"])}, "holds a heterogeneous graph"),
        ({"relation_names": np.array(["a"])}, "holds a knowledge graph"),
        ({"t": np.arange(3)}, "holds a temporal graph"),
        ({"edge_index": np.zeros((2, 3))}, "holds an edge list"),
        ({"indptr": np.array([0, 2, 1, 3, 3])}, "indptr must rise"),
        ({"indptr": np.array([0, 1, 1, 2, 2])}, "indptr ends at 2, but indices has 3"),
        ({"indices": np.array([1, 0, 4])}, "indices must be node ids below 4"),
        ({"x": np.zeros((3, 2))}, r"x must have 4 rows.*\(3, 2\)"),
        ({"y": np.array([0, 1, 2, -1])}, "labels from -1 to 1"),
        ({"val_mask": np.zeros(4, bool)}, "masks must be bool"),
        ({"test_mask": np.ones(4, bool)}, "nodes without a label"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "file.npz", small(**changes))
    with pytest.raises(ValueError, match=message):
        load_npz(path)


@named_cases(
    ("changes", "message"),
    [
        ({"y": np.array([0, 1, 1, {}], object)}, "is damaged: y: Object arrays cannot be loaded"),
        ({"y": np.array([0.5, 1, 1, -1])}, "y must be integers or unsigned integers of 1"),
        ({"indptr": np.array([[0, 1, 1, 3, 3]])}, r"indptr must be .*got int64 of shape \[1, 5\]"),
        ({"indptr": np.array([])}, "indptr must be integers"),
        ({"indices": np.array(["a", "b", "c"])}, "indices must be integers"),
        ({"x": np.array([["a"] * 2] * 4)}, "x must be bool or integers"),
        ({"train_mask": np.ones(4)}, "train_mask must be bool of 1 dimensions, got float64"),
        ({"num_classes": np.array([1, 2])}, "num_classes must be integers"),
        ({"class_names": np.array([1, 2])}, "class_names must be text"),
        ({"directed": np.array("yes")}, "directed must be bool"),
        ({"x": None, "x_data": np.ones(3)}, "has no x_indptr, x_indices, x_shape"),
        ({"x_shape": np.array([4])}, "x_indptr must have one entry more"),
        ({"x_indptr": np.array([0, 2, 1, 3, 3])}, "x_indptr must rise from 0"),
        ({"x_indptr": np.array([0, 2, 2, 3, 4])}, "x_indptr must rise from 0 to the lengths"),
        ({"x_indices": np.array([0, 2, 3])}, "x_indices must be columns below 3"),
        ({"x_indices": np.array([0, 2, -1])}, "x_indices must be columns below 3"),
    ],
)
def test_malformed_arrays(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sparse = {
        "x": None,
        "x_indptr": np.array([0, 2, 2, 3, 3]),
        "x_indices": np.array([0, 2, 1]),
        "x_data": np.array([3.0, 4, 7]),
        "x_shape": np.array([4, 3]),
    }
    base = sparse if any(k.startswith("x_") for k in changes) and "x" not in changes else {}
    path = write(tmp_path / "file.npz", small(**{**base, **changes}))
    with pytest.raises(ValueError, match=rf"file\.npz.*{message}"):
        load_npz(path)


def test_every_damaged_byte_is_an_error_of_the_file_or_harmless(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.npz", small()).read_bytes()
    path = tmp_path / "damaged.npz"
    for offset in range(0, len(whole), 7):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x24]) + whole[offset + 1 :])
        with suppress(ValueError):  # some bytes mean nothing
            load_npz(path)
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"damaged\.npz"):
            load_npz(path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.npz is not a \.npz file"):
        load_npz(tmp_path / "text.npz")
    (tmp_path / "empty.npz").touch()
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        load_npz(tmp_path / "empty.npz")
    whole = write(tmp_path / "whole.npz", small(x=np.random.default_rng(0).random((4, 500))))
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "damaged.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged\.npz is damaged"):
        load_npz(tmp_path / "damaged.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"not a \.npz file"):
        load_npz(tmp_path / "one.npy")


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "classes", "directed"),
    [
        ("cora", 2708, 10556, 7, False),
        ("citeseer", 3327, 9104, 6, False),
        ("amazon_photo", 7650, 238162, 8, False),
        ("tolokers", 11758, 1038000, 2, False),
    ],
)
def test_shared_data(name: str, nodes: int, edges: int, classes: int, directed: bool) -> None:
    path = SHARED_DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    graph = load_npz(path)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (nodes, edges, classes)
    assert graph.directed == directed
    if graph.x.dtype == np.float32 and name != "tolokers":
        norms = np.linalg.norm(graph.x, axis=1)
        assert np.isin(norms.round(4), (0, 1)).all()


@pytest.mark.parametrize("name", ["imdb_hetero", "wn18rr", "bitcoin_otc", "ogbl_ddi_train"])
def test_shared_data_of_other_kinds_is_refused(name: str) -> None:
    path = SHARED_DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with pytest.raises(ValueError, match="expected a homogeneous labelled graph"):
        load_npz(path)
