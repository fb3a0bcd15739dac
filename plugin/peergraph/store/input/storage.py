"""Reads the option `storage`, which gives tables a narrow storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from peergraph.memory.table.row_codec import codec_of, storage_name
from peergraph.store.input.schema import Schema, TableSpec
from peergraph.store.input.source import EdgeType, NodeType

Named = Mapping[str, str | torch.dtype]
StorageOption = Mapping[NodeType | EdgeType, str | torch.dtype | Named]
"""Maps names of tables to storages; or node and edge types to such mappings."""

CheckedStorage = dict[NodeType | EdgeType, str | dict[str, str]]


def checked_storage(option: StorageOption | None) -> CheckedStorage:
    """Checks the option, and returns it with storages named as :func:`storage_name` names them.

    Raises:
        TypeError: the option is not a mapping.
        ValueError: a storage is unknown; the error names its table.
    """
    if option is None:
        return {}
    if not isinstance(option, Mapping):
        raise TypeError(
            'storage must be a mapping of tables, such as {"x": "bfloat16"} or '
            f'{{"paper": {{"x": "int8"}}}}, got {option!r}'
        )
    return {
        key: {name: checked_name(name, one) for name, one in value.items()}
        if isinstance(value, Mapping)
        else checked_name(key, value)
        for key, value in option.items()
    }


def checked_name(table: object, storage: str | torch.dtype) -> str:
    """The name of the storage of a table; raises ValueError, with the table, for an unknown one."""
    try:
        return storage_name(storage)
    except ValueError as error:
        raise ValueError(f"table {table!r}: {error}") from None


def storage_of(storage: CheckedStorage, kind: NodeType | EdgeType, name: str) -> str | None:
    """Returns the storage that the option gives to a table; None: none.

    An entry for the table's type and name takes precedence over an entry for its name alone.
    """
    of_kind, by_name = storage.get(kind), storage.get(name)
    if isinstance(of_kind, dict) and name in of_kind:
        return of_kind[name]
    return by_name if isinstance(by_name, str) else None


def check_tables(
    storage: CheckedStorage, tables: Mapping[NodeType | EdgeType, Iterable[str]]
) -> None:
    """Raises ValueError if the option names a table that does not exist.

    Args:
        storage: the option.
        tables: the names of the tables of each node and edge type.
    """
    names = {name for named in tables.values() for name in named}
    for key, value in storage.items():
        names_in_option = {(key, name) for name in value} if isinstance(value, dict) else {key}
        there = {(key, name) for name in tables.get(key, ())} if isinstance(value, dict) else names
        for unknown in names_in_option - there:
            listed = [f"{name!r} of {kind!r}" for kind, named in tables.items() for name in named]
            raise ValueError(
                f"storage names no table: {unknown!r}; there are {', '.join(listed) or 'none'}"
            )


def with_storage(schema: Schema, storage: CheckedStorage) -> Schema:
    """Returns the schema with the storage of each table.

    The option decides; for a table that it does not name, the table's source decides.

    Raises:
        ValueError: the option names a table or type that does not exist, or tables of a dtype
            cannot have the chosen storage.
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
    return stored_as(chosen, kind, name, spec)


def stored_as(
    chosen: str | None, kind: NodeType | EdgeType, name: str, spec: TableSpec
) -> TableSpec:
    """The description of a table with a storage, by name; None: as its source has the rows.

    Raises:
        ValueError: the table's dtype cannot have this storage.
    """
    try:
        codec = codec_of(chosen, spec.dtype, spec.shape[1:])
    except ValueError as error:
        raise ValueError(f"table {name!r} of {kind!r}: {error}") from None
    return replace(spec, storage=None if codec is None else codec.storage)
