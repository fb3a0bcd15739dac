"""accuracy_dgl.py on small graphs: every kind of script, on both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.benchmarks.running import run_script

pytest.importorskip("peergraph_dgl", exc_type=ImportError)

NODES, CLASSES = 300, 3


def communities(prefix: str, masks: str) -> dict[str, Any]:
    """Arrays of a CSC among nodes whose class is their id modulo the classes."""
    rng = np.random.default_rng(0)
    label = np.arange(NODES) % CLASSES
    inside = rng.integers(0, NODES // CLASSES, (NODES, 6)) * CLASSES + label[:, None]
    split = np.arange(NODES) // CLASSES % 3
    noisy = np.eye(CLASSES)[label] + 0.3 * rng.random((NODES, CLASSES))
    return {
        f"{prefix}indptr": np.arange(0, 6 * NODES + 1, 6),
        f"{prefix}indices": np.sort(inside, axis=1).reshape(-1).astype(np.int32),
        f"{masks}y": label,
        f"{masks}train_mask": split == 0,
        f"{masks}val_mask": split == 1,
        f"{masks}test_mask": split == 2,
        f"{masks}x_indptr": np.arange(0, CLASSES * NODES + 1, CLASSES),
        f"{masks}x_indices": np.tile(np.arange(CLASSES), NODES),
        f"{masks}x_data": noisy.reshape(-1).astype(np.float32),
        f"{masks}x_shape": np.array([NODES, CLASSES]),
        "num_classes": np.array(CLASSES),
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("cora", "amazon_photo"):
        np.savez(tmp_path / f"{name}.npz", **communities("", ""), directed=np.array(False))
    sources = {
        "b.in.a.indptr": np.arange(NODES + 1),
        "b.in.a.indices": np.arange(NODES, dtype=np.int32) % CLASSES,
    }
    for name in ("imdb_hetero", "debian_hetero"):
        np.savez(
            tmp_path / f"{name}.npz",
            **communities("a.cites.a.", "a."),
            **sources,
            **{"a.num_nodes": np.array(NODES), "b.num_nodes": np.array(CLASSES)},
            node_types=np.array(["a", "b"]),
            edge_types=np.array(["a.cites.a", "b.in.a"]),
            target=np.array("a"),
        )
    return tmp_path


def test_every_kind_is_measured(data: Path) -> None:
    kinds = ["nodes", "ddp", "links", "types"]
    dgl = pytest.importorskip("dgl", exc_type=ImportError)
    if not dgl.__version__.startswith("1."):
        kinds.append("graphbolt")
    page, rows = data / "page.md", data / "rows.json"
    page.write_text("# Accuracy\n\n<!-- table: dgl -->\n\nold\n\n<!-- end -->\n\nstays\n")
    command = ["accuracy_dgl", "--data", data]
    more = "--seeds 2 --hidden 16 --fanout 4 --epochs 2"
    settings = ["--kinds", ",".join(kinds), "--records", rows, "--out", page]
    run_script(*command, more, *settings)
    measured = json.loads(rows.read_text())
    assert len(measured) == 2 * len(kinds)
    for row in measured.values():
        for side in ("store", "plain"):
            assert len(row[side]) == 2
            assert all(0 <= score <= 100 for score in row[side])
    # The easiest case is learned in the few steps that there are.
    assert max(measured["nodes cora 1"]["store"]) > 60

    plain_only = ["--plain", rows, "--kinds", "nodes"]
    done = run_script(*command, more, *plain_only)
    score = measured["nodes cora 1"]["plain"]
    assert f"{sum(score) / 2:.2f}" in done.stdout

    text = page.read_text()
    assert text.count("| cora |") == len(kinds) - 1
    assert "old" not in text
    assert text.endswith("<!-- end -->\n\nstays\n")
