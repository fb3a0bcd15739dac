"""The manifest of a saved store: describes its files. Reading a manifest checks it."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

import peergraph._C as _C
from peergraph.json_fields import Fields, parse_json
from peergraph.memory import RowCodec
from peergraph.memory.device.launching import DTYPES
from peergraph.memory.table.row_codec import codec_of, storage_name
from peergraph.store.disk.checked_file import read_all
from peergraph.store.input.frame_spec import LAYOUTS, FrameField, FrameSpec
from peergraph.store.input.source import EdgeType, NodeType

FORMAT_VERSION = 4
"""The version of folders with frames; others are written in the version that suffices."""

_VERSION_WITH_STORAGE = 3
_VERSION_WITHOUT_STORAGE = 2
FILE_NAME = "manifest.json"
BLOCK_BYTES = 4 << 20
"""Bytes of a block of a file; each block has a checksum, the last one may be shorter."""

DTYPE_NAMES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
}
"""The dtypes of tables that can be saved, by name."""

_MAX_BYTES = 1 << 30
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.npy")
_IDS = ("int32", "int64")


@dataclass(frozen=True)
class ArrayEntry:
    """One ``.npy`` file.

    Args:
        file: the name of the file in the folder.
        dtype: torch's name of the dtype.
        shape: the shape of the array, ``(rows, ...)``.
        crc32c: the checksums of the blocks of :data:`BLOCK_BYTES` bytes, header included.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    crc32c: tuple[int, ...]

    @classmethod
    def read(cls, fields: Fields, dtypes: Iterable[str], rows: int, *more: str) -> ArrayEntry:
        """Reads an entry of JSON, which may have `more` keys. Raises ``ValueError`` for other
        dtypes or another number of rows.
        """
        fields.only("name", "file", "dtype", "shape", "crc32c", *more)
        if not _PLAIN_NAME.fullmatch(fields.text("file")):
            fields.fail("file", "the plain name of a .npy file in the folder")
        shape = fields.integers("shape")
        if shape[:1] != (rows,):
            fields.fail("shape", f"of {rows} rows")
        dtype = fields.one_of("dtype", dtypes)
        crc32c = fields.integers("crc32c")
        return cls(fields.text("file"), dtype, shape, crc32c)


@dataclass(frozen=True)
class StorageEntry:
    """Narrow storage of a table: the file has encoded rows, uint8 ``[rows, row bytes]``.

    Args:
        name: the name of the storage.
        dtype: torch's name of the users' dtype.
        row_shape: the shape of a row as users see it.
    """

    name: str
    dtype: str
    row_shape: tuple[int, ...]

    @classmethod
    def of(cls, codec: RowCodec) -> StorageEntry:
        """Makes the entry of a codec."""
        return cls(codec.storage, str(codec.dtype).removeprefix("torch."), codec.row_shape)

    @property
    def codec(self) -> RowCodec:
        """Returns the codec of the rows. Raises ValueError for an unknown storage."""
        codec = codec_of(storage_name(self.name), DTYPE_NAMES[self.dtype], self.row_shape)
        if codec is None:
            raise ValueError(f"storage {self.name!r} is the dtype of the rows")
        return codec

    @classmethod
    def read(cls, fields: Fields, array: ArrayEntry) -> StorageEntry:
        """Reads an entry of JSON. Raises ``ValueError`` if the array's rows do not fit."""
        fields.only("name", "dtype", "row_shape")
        dtype = fields.one_of("dtype", DTYPE_NAMES)
        entry = cls(fields.text("name"), dtype, fields.integers("row_shape"))
        try:
            row_bytes = entry.codec.row_bytes
        except ValueError as error:
            raise ValueError(f"{fields.where}: {error}") from None
        if array.dtype != "uint8" or array.shape[1:] != (row_bytes,):
            fields.fail("row_shape", f"of rows of {row_bytes} bytes, as uint8 in the file")
        return entry


@dataclass(frozen=True)
class TableEntry:
    """A table's name and rows, and their narrow storage (None: the file has the users' rows)."""

    name: str
    array: ArrayEntry
    storage: StorageEntry | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table as users see it."""
        if self.storage is None:
            return self.array.shape
        return (self.array.shape[0], *self.storage.row_shape)

    @property
    def dtype(self) -> str:
        """Torch's name of the users' dtype."""
        return self.array.dtype if self.storage is None else self.storage.dtype


@dataclass(frozen=True)
class NodeEntry:
    """A node type, or the elements of lists."""

    type: NodeType
    count: int
    tables: tuple[TableEntry, ...]
    frames: Mapping[str, FrameSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeEntry:
    """An edge type: its CSC, the ids of the edges (None: the position is the id), its tables."""

    type: EdgeType
    count: int
    indptr: ArrayEntry
    indices: ArrayEntry
    edge_ids: ArrayEntry | None
    tables: tuple[TableEntry, ...]
    frames: Mapping[str, FrameSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class EmbeddingEntry:
    """An embedding, and the state of its optimizer (None: it has no state)."""

    name: str
    type: NodeType
    plan: str
    in_state_dict: bool
    optimizer: str | None
    step: int
    weight: ArrayEntry
    state: tuple[TableEntry, ...]


@dataclass(frozen=True)
class Manifest:
    """Everything in a saved store except the contents of its files."""

    nodes: tuple[NodeEntry, ...]
    edges: tuple[EdgeEntry, ...]
    embeddings: tuple[EmbeddingEntry, ...]

    @property
    def num_nodes(self) -> dict[NodeType, int]:
        """The number of nodes of each type."""
        return {entry.type: entry.count for entry in self.nodes}

    @property
    def frames(self) -> dict[NodeType | EdgeType, Mapping[str, FrameSpec]]:
        """The frames of each type that has some, by name."""
        frames: dict[NodeType | EdgeType, Mapping[str, FrameSpec]] = {}
        frames.update((entry.type, entry.frames) for entry in self.nodes if entry.frames)
        frames.update((entry.type, entry.frames) for entry in self.edges if entry.frames)
        return frames

    @property
    def format(self) -> int:
        """The first version of the format that can hold this."""
        if self.frames:
            return FORMAT_VERSION
        named = [entry.tables for entry in self.nodes] + [entry.tables for entry in self.edges]
        has_storage = any(table.storage is not None for tables in named for table in tables)
        return _VERSION_WITH_STORAGE if has_storage else _VERSION_WITHOUT_STORAGE

    def arrays(self) -> list[ArrayEntry]:
        """Returns the entries of all files."""
        arrays = []
        for nodes in self.nodes:
            arrays += [table.array for table in nodes.tables]
        for edges in self.edges:
            arrays += [edges.indptr, edges.indices]
            arrays += [edges.edge_ids] if edges.edge_ids is not None else []
            arrays += [table.array for table in edges.tables]
        for embedding in self.embeddings:
            arrays += [embedding.weight, *(table.array for table in embedding.state)]
        return arrays

    def to_json(self) -> str:
        """Returns the text that :func:`read_manifest` reads."""
        values = {"format": self.format, **_plain(self)}
        values["crc32c"] = _checksum(values)
        return json.dumps(values, indent=1)


def read_manifest(folder: Path, verify: bool) -> Manifest:
    """Reads the manifest of a folder.

    Args:
        folder: the folder of the store.
        verify: whether to compare the manifest's checksum.

    Raises:
        FileNotFoundError: there is no manifest.
        ValueError: the manifest is not in the form that :meth:`Manifest.to_json` writes.
    """
    path = folder / FILE_NAME
    try:
        text = read_all(path, _MAX_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(f"no saved store: {path} is missing") from None
    values = parse_json(text, str(path))
    fields = Fields(values, f"{path}: ")
    version = fields.get("format")
    first = _VERSION_WITHOUT_STORAGE
    if type(version) is not int or not first <= version <= FORMAT_VERSION:
        raise ValueError(
            f"{path}: format {version!r}, this version reads {first} to {FORMAT_VERSION}"
        )
    manifest = _read(fields)
    if verify and values["crc32c"] != _checksum(values):
        raise ValueError(
            f"{path} has been changed since it was saved: its checksum is {_checksum(values)}, "
            f"it says {values['crc32c']}"
        )
    return manifest


def _plain(value: Any) -> Any:
    """Converts entries to dicts; the array of a table is in the table's own dict."""
    if isinstance(value, TableEntry):
        storage = {} if value.storage is None else {"storage": _plain(value.storage)}
        return {"name": value.name, **_plain(value.array), **storage}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if is_dataclass(value):
        members = {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
        if isinstance(value, (NodeEntry, EdgeEntry)) and not value.frames:
            del members["frames"]
        return members
    return value


def _checksum(values: dict[str, Any]) -> int:
    """Returns the checksum of all other values; formatting does not matter."""
    rest = {key: value for key, value in values.items() if key != "crc32c"}
    text = torch.frombuffer(bytearray(json.dumps(rest, sort_keys=True).encode()), dtype=torch.uint8)
    return _C.crc32c(text)


def _read(fields: Fields) -> Manifest:
    fields.only("format", "nodes", "edges", "embeddings", "crc32c")
    fields.integer("crc32c")
    version = fields.integer("format")
    nodes = tuple(_read_nodes(entry, version) for entry in fields.objects("nodes"))
    counts = {entry.type: entry.count for entry in nodes}
    edges = tuple(_read_edges(entry, counts, version) for entry in fields.objects("edges"))
    embeddings = tuple(_read_embedding(entry, counts) for entry in fields.objects("embeddings"))
    manifest = Manifest(nodes, edges, embeddings)
    for what, names in (
        ("nodes: the type", [entry.type for entry in nodes]),
        ("edges: the type", [entry.type for entry in edges]),
        ("embeddings: the node type and name", [(e.type, e.name) for e in embeddings]),
        ("the file", [entry.file for entry in manifest.arrays()]),
    ):
        _check_unique(names, f"{fields.where}{what}")
    return manifest


def _read_nodes(fields: Fields, version: int) -> NodeEntry:
    fields.only("type", "count", "tables", *_keys_of(version))
    count = fields.integer("count")
    tables = _read_tables(fields, "tables", count, version >= _VERSION_WITH_STORAGE)
    return NodeEntry(fields.text("type"), count, tables, _read_frames(fields))


def _keys_of(version: int) -> tuple[str, ...]:
    return ("frames",) if version >= FORMAT_VERSION else ()


def _read_frames(fields: Fields) -> dict[str, FrameSpec]:
    """Reads the frames of a type. The build of the store checks that they fit the tables."""
    if not fields.has("frames"):
        return {}
    frames = fields.object("frames")
    return {name: _read_frame(frames.object(name)) for name in frames.names()}


def _read_frame(fields: Fields) -> FrameSpec:
    fields.only("columns", "fields", "statistics")
    columns, statistics = fields.object("columns"), fields.object("statistics")

    def read(entry: Fields) -> FrameField:
        entry.only("stype", "key", "layout", "ends")
        layout = next(one for one in LAYOUTS if one == entry.one_of("layout", LAYOUTS))
        key = entry.text("key") if entry.has("key") else None
        return FrameField(entry.text("stype"), key, layout, entry.integers("ends"))

    return FrameSpec(
        {stype: columns.texts(stype) for stype in columns.names()},
        tuple(map(read, fields.objects("fields"))),
        {
            column: {name: of.get(name) for name in of.names()}
            for column in statistics.names()
            for of in (statistics.object(column),)
        },
    )


def _read_edges(fields: Fields, counts: dict[NodeType, int], version: int) -> EdgeEntry:
    fields.only("type", "count", "indptr", "indices", "edge_ids", "tables", *_keys_of(version))
    kind = fields.texts("type")
    if len(kind) != 3 or kind[0] not in counts or kind[2] not in counts:
        fields.fail("type", "a node type, a relation and a node type")
    count = fields.integer("count")
    edge_ids = None
    if fields.get("edge_ids") is not None:
        edge_ids = _read_ids(fields.object("edge_ids"), _IDS, count)
    return EdgeEntry(
        (kind[0], kind[1], kind[2]),
        count,
        _read_ids(fields.object("indptr"), ("int64",), counts[kind[2]] + 1),
        _read_ids(fields.object("indices"), _IDS, count),
        edge_ids,
        _read_tables(fields, "tables", count, version >= _VERSION_WITH_STORAGE),
        _read_frames(fields),
    )


def _read_ids(fields: Fields, dtypes: Iterable[str], count: int) -> ArrayEntry:
    entry = ArrayEntry.read(fields, dtypes, count)
    if len(entry.shape) != 1:
        fields.fail("shape", f"[{count}]")
    return entry


def _read_tables(
    fields: Fields, key: str, rows: int, may_be_narrow: bool = False
) -> tuple[TableEntry, ...]:
    """Reads tables; tables with narrow storage only if `may_be_narrow`."""
    more = ("storage",) if may_be_narrow else ()

    def read(entry: Fields) -> TableEntry:
        array = ArrayEntry.read(entry, DTYPE_NAMES, rows, *more)
        storage = None
        if may_be_narrow and entry.has("storage"):
            storage = StorageEntry.read(entry.object("storage"), array)
        return TableEntry(entry.text("name"), array, storage)

    tables = tuple(map(read, fields.objects(key)))
    _check_unique([table.name for table in tables], f"{fields.where}.{key}: the name")
    return tables


def _read_embedding(fields: Fields, counts: dict[NodeType, int]) -> EmbeddingEntry:
    fields.only("name", "type", "plan", "in_state_dict", "optimizer", "step", "weight", "state")
    node_type = fields.one_of("type", counts)
    rows = counts[node_type]
    names = [name for name, dtype in DTYPE_NAMES.items() if dtype in DTYPES]
    weight = ArrayEntry.read(fields.object("weight"), names, rows)
    if len(weight.shape) != 2 or weight.shape[1] < 1:
        fields.object("weight").fail("shape", f"[{rows}, width of a row]")
    state = _read_tables(fields, "state", rows)
    for table, entry in zip(state, fields.objects("state"), strict=True):
        if table.array.shape != weight.shape:
            entry.fail("shape", f"{list(weight.shape)}, as the embedding's")
    return EmbeddingEntry(
        fields.text("name"),
        node_type,
        fields.one_of("plan", ("auto", "replicated", "sharded", "host")),
        fields.flag("in_state_dict"),
        None if fields.get("optimizer") is None else fields.text("optimizer"),
        fields.integer("step"),
        weight,
        state,
    )


def _check_unique(names: list[Any], what: str) -> None:
    earlier: set[Hashable] = set()
    for name in names:
        if name in earlier:
            raise ValueError(f"{what} {name!r} occurs twice")
        earlier.add(name)
