"""The option `storage`: which tables are stored in fewer bytes than their users see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from peergraph.memory.table.row_codec import codec_of, storage_name
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import EdgeType, NodeType

Named = Mapping[str, str | torch.dtype]
StorageOption = Mapping[NodeType | EdgeType, str | torch.dtype | Named]
"""By name of tables, or by node or edge type and name."""

CheckedStorage = dict[NodeType | EdgeType, str | dict[str, str]]


def checked_storage(given: StorageOption | None) -> CheckedStorage:
    """The option with the names of :func:`storage_name`.

    Raises:
        TypeError: it is no mapping.
        ValueError: an unknown storage; names its table.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            'storage must be a mapping of tables, such as {"x": "bfloat16"} or '
            f'{{"paper": {{"x": "int8"}}}}, got {given!r}'
        )
    return {
        key: {name: _name(name, one) for name, one in value.items()}
        if isinstance(value, Mapping)
        else _name(key, value)
        for key, value in given.items()
    }


def _name(table: object, given: str | torch.dtype) -> str:
    try:
        return storage_name(given)
    except ValueError as error:
        raise ValueError(f"table {table!r}: {error}") from None


def storage_of(storage: CheckedStorage, kind: NodeType | EdgeType, name: str) -> str | None:
    """What the option says about a table; by type goes before by name alone."""
    of_kind, by_name = storage.get(kind), storage.get(name)
    if isinstance(of_kind, dict) and name in of_kind:
        return of_kind[name]
    return by_name if isinstance(by_name, str) else None


def check_tables(
    storage: CheckedStorage, tables: Mapping[NodeType | EdgeType, Iterable[str]]
) -> None:
    """Raises ValueError where the option names a table that is not among the names by type."""
    names = {name for named in tables.values() for name in named}
    for key, value in storage.items():
        wanted = {(key, name) for name in value} if isinstance(value, dict) else {key}
        there = {(key, name) for name in tables.get(key, ())} if isinstance(value, dict) else names
        for unknown in wanted - there:
            known = [f"{name!r} of {kind!r}" for kind, named in tables.items() for name in named]
            raise ValueError(
                f"storage names no table: {unknown!r}; there are {', '.join(known) or 'none'}"
            )


def with_storage(schema: Schema, storage: CheckedStorage) -> Schema:
    """The schema with the storage of each table: the option's, else its source's.

    Raises:
        ValueError: a table or type that there is not; a storage that the table's dtype cannot have.
    """
    names: dict[NodeType | EdgeType, Iterable[str]] = dict(schema.node_tables.items())
    names.update(schema.edge_tables.items())
    check_tables(storage, names)
    return replace(
        schema,
        node_tables={
            kind: {name: _stored(kind, name, spec, storage) for name, spec in named.items()}
            for kind, named in schema.node_tables.items()
        },
        edge_tables={
            kind: {name: _stored(kind, name, spec, storage) for name, spec in named.items()}
            for kind, named in schema.edge_tables.items()
        },
    )


def _stored(
    kind: NodeType | EdgeType, name: str, spec: TableSpec, storage: CheckedStorage
) -> TableSpec:
    chosen = storage_of(storage, kind, name)
    if chosen is None and spec.storage is not None:
        chosen = storage_name(spec.storage)
    try:
        codec = codec_of(chosen, spec.dtype, spec.shape[1:])
    except ValueError as error:
        raise ValueError(f"table {name!r} of {kind!r}: {error}") from None
    return replace(spec, storage=None if codec is None else codec.storage)
