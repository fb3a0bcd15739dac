"""Frames: the columns of a typed table, whose rows are those of a node type or an edge type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

NodeType = str
EdgeType = tuple[str, str, str]

Layout = Literal["dense", "joined", "lists"]
LAYOUTS: tuple[Layout, ...] = ("dense", "joined", "lists")

TARGET = "y"
"""The name of the field of a frame that has the targets of its rows."""
VALUES = "values"
"""The name of the table with the elements of lists."""
_LISTS = "_L:"


@dataclass(frozen=True)
class FrameField:
    """Columns of a frame that are in one table.

    Args:
        stype: the semantic type of the columns, such as ``"numerical"``, or :data:`TARGET`.
        key: the key of the field, if the columns are a dictionary of fields; else None.
        layout: ``"dense"``: the table is ``[rows, columns, ...]``, that of targets ``[rows, ...]``.
            ``"joined"``: it is ``[rows, width]``, the columns side by side. ``"lists"``: it is
            int64 ``[rows, columns + 1]``, the positions at which the lists of a row begin, and the
            end of the last one, in a table of all elements.
        ends: of joined columns, 0 and the position behind each column.
    """

    stype: str
    key: str | None
    layout: Layout
    ends: tuple[int, ...] = ()

    def table(self, frame: str) -> str:
        """Returns the name of the table in a store, for the field of a frame of this name."""
        return ".".join((frame, self.stype, *(() if self.key is None else (self.key,))))


@dataclass(frozen=True)
class FrameSpec:
    """The columns of a frame, without its rows.

    Args:
        columns: the names of the columns, by semantic type.
        fields: the fields of the frame, at least one.
        statistics: by column and by the statistic's name, numbers, texts, null and lists of them.
    """

    columns: Mapping[str, tuple[str, ...]]
    fields: tuple[FrameField, ...]
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Frames = Mapping[NodeType | EdgeType, Mapping[str, FrameSpec]]
"""By node type or edge type and name."""


def list_type(owner: NodeType | EdgeType, table: str) -> NodeType:
    """Returns the type of the elements of lists, which the core places as rows of their own.

    Args:
        owner: the type whose rows have the lists.
        table: the name of the lists' table.
    """
    return f"{_LISTS}{owner if isinstance(owner, str) else '-'.join(owner)}.{table}"


def is_list_type(node_type: NodeType) -> bool:
    """Returns whether rows of this type are elements of lists, and no nodes."""
    return node_type.startswith(_LISTS)


def list_owners(frames: Frames) -> dict[NodeType, NodeType | EdgeType]:
    """Returns the type whose rows have the lists, for each type of elements."""
    return {
        list_type(owner, one.table(name)): owner
        for owner, named in frames.items()
        for name, spec in named.items()
        for one in spec.fields
        if one.layout == "lists"
    }


def check_frames(
    frames: Frames,
    shapes: Mapping[NodeType | EdgeType, Mapping[str, tuple[int, ...]]],
    node_types: Mapping[NodeType, Any],
) -> None:
    """Raises ``ValueError`` if tables are missing or do not have the columns of frames, or if rows
    are elements of no list.

    Args:
        shapes: the shape of each table, by type and name.
        node_types: all node types, those of elements among them.
    """
    for owner, named in frames.items():
        for name, spec in named.items():
            for one in spec.fields:
                _check_field(owner, name, spec, one, shapes)
    owners = list_owners(frames)
    for node_type in filter(is_list_type, node_types):
        if node_type not in owners:
            raise ValueError(
                f"node type {node_type!r}: names that begin with {_LISTS!r} are those of lists"
            )


def _check_field(
    owner: NodeType | EdgeType,
    name: str,
    spec: FrameSpec,
    one: FrameField,
    shapes: Mapping[NodeType | EdgeType, Mapping[str, tuple[int, ...]]],
) -> None:
    table = one.table(name)
    shape = shapes.get(owner, {}).get(table)
    where = f"frame {name!r} of {owner!r}"
    if shape is None:
        raise ValueError(f"{where}: there is no table {table!r}")
    if one.stype == TARGET and one.layout == "dense":
        return
    columns = len(spec.columns.get(one.stype, ()))
    ends = one.ends
    if one.layout == "joined":
        rises = ends[:1] == (0,) and list(ends) == sorted(ends) and len(ends) == columns + 1
        fits = rises and shape[1:] == (ends[-1],)
    elif one.layout == "lists":
        values = shapes.get(list_type(owner, table), {}).get(VALUES)
        if values is None or len(values) != 1:
            raise ValueError(f"{where}: the lists {table!r} need a table [elements] of values")
        fits = shape[1:] == (columns + 1,)
    else:
        fits = len(shape) >= 2 and shape[1] == columns
    if not fits or not columns:
        raise ValueError(
            f"{where}: table {table!r} with {columns} columns cannot be {one.layout} rows of "
            f"shape {list(shape[1:])}"
        )
