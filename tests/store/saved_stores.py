"""A saved store to be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import peergraph
from peergraph import optim
from peergraph.store import Store
from tests.store.graphs import heterogeneous_source


def save_small_store(folder: Path) -> None:
    """Two node types, three relations with edge ids, tables, and a trained embedding."""
    with Store.build(heterogeneous_source(), plan="host", device="cpu") as store:
        embedding = peergraph.Embedding(store, 3, node_type="user")
        optimizer = optim.SparseAdam(embedding)
        embedding(torch.arange(4)).sum().backward()
        optimizer.step()
        store.save(folder)


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest's values, and leaves its checksum as it is."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def flip_byte(path: Path, offset: int) -> None:
    """Changes one byte of a file; a negative offset counts from its end."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)
