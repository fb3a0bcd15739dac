"""Embeddings and their optimizers' state in a saved store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peergraph.memory import Table
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.training.coalesce import accumulator
from peergraph.store.disk.manifest import ArrayEntry, EmbeddingEntry, TableEntry
from peergraph.store.disk.saved_store import SavedStore
from peergraph.store.embedding.embedding import (
    Embedding,
    EmbeddingOwner,
    RowState,
    load_rows,
)
from peergraph.store.embedding.optimizers import STATE_NAMES
from peergraph.store.input.source import RowSource


def describe(
    embeddings: Sequence[Embedding], write: Callable[[Table, str], ArrayEntry]
) -> tuple[EmbeddingEntry, ...]:
    """Writes all tables of embeddings; returns their entries of the manifest.

    Args:
        embeddings: the embeddings.
        write: writes a table to a file of the given name.
    """
    entries = []
    for number, embedding in enumerate(embeddings):
        arrays = {
            name: write(table, f"embedding{number}.table{at}.npy")
            for at, (name, table) in enumerate(embedding.tables().items())
        }
        state = embedding.row_state
        entry = EmbeddingEntry(
            name=embedding.name,
            type=embedding.node_type,
            plan=embedding.plan,
            in_state_dict=embedding.in_state_dict,
            optimizer=state.optimizer if state else None,
            step=state.step if state else 0,
            weight=arrays.pop("weight"),
            state=tuple(TableEntry(name, array) for name, array in arrays.items()),
        )
        entries.append(entry)
    return tuple(entries)


def restore(store: EmbeddingOwner, saved: SavedStore) -> None:
    """Makes the embeddings of a saved store. Collective.

    Raises ValueError on every rank if a checksum differs, or if state does not fit the optimizer.
    """
    for entry in saved.manifest.embeddings:
        _restore_embedding(store, saved, entry)


def _restore_embedding(store: EmbeddingOwner, saved: SavedStore, entry: EmbeddingEntry) -> None:
    group = store.group
    assert group is not None

    collective_call(group, lambda: _check_state(saved, entry))
    weight = _row_source(saved, entry.weight)
    embedding = Embedding(
        store,
        entry.weight.shape[1],
        name=entry.name,
        node_type=entry.type,
        plan=entry.plan,
        dtype=weight.dtype,
        init=weight,
        in_state_dict=entry.in_state_dict,
    )
    if entry.optimizer is None:
        return
    tables = {table.name: embedding.trained.new_state(0.0) for table in entry.state}
    embedding.trained.group.barrier()
    for table in entry.state:
        load_rows(tables[table.name], _row_source(saved, table.array))
    embedding.row_state = RowState(entry.optimizer, entry.step, tables, restored=True)


def _row_source(saved: SavedStore, entry: ArrayEntry) -> RowSource:
    file = saved.arrays[entry.file]
    return RowSource(entry.shape, file.dtype, file.read)


def _check_state(saved: SavedStore, entry: EmbeddingEntry) -> None:
    """Raises ValueError if the state does not belong to the optimizer."""
    where = f"{saved.folder}: state of embedding {entry.name!r} of {entry.type!r}"
    names = tuple(table.name for table in entry.state)
    expected = () if entry.optimizer is None else STATE_NAMES.get(entry.optimizer, names)
    if names != expected:
        raise ValueError(f"{where} must be {expected} for {entry.optimizer}, is {names}")
    dtype = accumulator(saved.arrays[entry.weight.file].dtype)
    for table in entry.state:
        dtype_on_disk = saved.arrays[table.array.file].dtype
        if dtype_on_disk != dtype:
            raise ValueError(f"{where}: {table.name!r} must be {dtype}, is {dtype_on_disk}")
