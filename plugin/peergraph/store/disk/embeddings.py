"""Embeddings and their optimizers' state in a saved store."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peergraph.store.disk import npy_folder

if TYPE_CHECKING:
    from peergraph.store.embedding.embedding import Embedding
    from peergraph.store.store import Store


def write(store: Store, folder: Path) -> dict[str, Any]:
    """Writes all embeddings; returns their entry of the manifest."""
    entries = [
        _write_embedding(embedding, folder, f"embedding{number}")
        for number, embedding in enumerate(store.embeddings.values())
    ]
    return {"embeddings": entries}


def restore(store: Store, folder: str | PathLike[str]) -> None:
    """Makes the embeddings of a saved store. Collective."""
    for entry in npy_folder.read_manifest(Path(folder)).get("embeddings", []):
        _restore_embedding(store, Path(folder), entry)


def _write_embedding(embedding: Embedding, folder: Path, stem: str) -> dict[str, Any]:
    state = embedding.row_state
    return {
        "name": embedding.name,
        "type": embedding.node_type,
        "plan": embedding.plan,
        "in_state_dict": embedding.in_state_dict,
        "optimizer": state.optimizer if state else None,
        "step": state.step if state else 0,
        "tables": npy_folder.write_tables(embedding.tables(), folder, stem),
    }


def _restore_embedding(store: Store, folder: Path, entry: dict[str, Any]) -> None:
    # Here, for an embedding needs the store.
    from peergraph.store.embedding.embedding import Embedding, RowState, load_rows

    saved = {table["name"]: npy_folder.map_table(folder, table) for table in entry["tables"]}
    weight = saved.pop("weight")
    embedding = Embedding(
        store,
        weight.size(1),
        name=entry["name"],
        node_type=entry["type"],
        plan=entry["plan"],
        dtype=weight.dtype,
        init=weight,
        in_state_dict=entry["in_state_dict"],
    )
    if entry["optimizer"] is None:
        return
    tables = {name: embedding.trained.new_state(0.0) for name in saved}
    embedding.trained.group.barrier()
    for name, rows in saved.items():
        load_rows(tables[name], rows)
    embedding.row_state = RowState(entry["optimizer"], entry["step"], tables, restored=True)
