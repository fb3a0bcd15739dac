"""`StoredFrame`: a table of PyTorch Frame whose rows stay in the store until they are selected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import TensorFrame

from peergraph.memory import ListRows, ListTable, Table, gather_tables, list_places
from peergraph.store import (
    TARGET,
    EdgeType,
    FrameField,
    FrameSpec,
    NodeType,
    RowSource,
    Store,
    TableTensor,
)

from .frame_source import FrameSource, ragged, statistics_of, stype_class

_CPU = torch.device("cpu")


class StoredFrame(TensorFrame):  # type: ignore[misc]
    """A ``torch_frame.TensorFrame`` of all nodes or edges of a type, with its rows in a store.

    ``tf[ids]`` (ids on any device, a mask, a slice, a list) gathers rows on the store's device and
    returns a plain ``TensorFrame`` with the names of the columns and, if the original had them, the
    statistics of its attribute ``col_stats``. One-sided. Lists take two gathers, and wait for the
    GPU once, for the number of their elements; a batch of a loader gathers all of its frames
    together.

    ``tf.feat_dict[stype]`` gives dense columns as a :class:`TableTensor`; of lists it reads all
    rows, as ``tf.to(device)`` does. Columns cannot be replaced. Pickles as a plain frame, and as a
    handle for another process of the machine.

    Args:
        store: the store.
        owner: the node type or edge type of the rows.
        name: the name of the frame in the store; ``KeyError`` if there is none.

    Raises ``ImportError`` if ``torch_frame`` cannot be imported.

    Example:
        >>> shared = peergraph_pyg.share(data)
        >>> shared["user"].tf[torch.tensor([3, 5])].num_rows
        2
    """

    def __init__(self, store: Store, owner: NodeType | EdgeType, name: str) -> None:
        self.store, self.owner, self.name = store, owner, name
        self.spec: FrameSpec = store.frames(owner)[name]
        stypes = stype_class()
        self.col_names_dict = {stypes(key): [*names] for key, names in self.spec.columns.items()}
        self._col_to_stype_idx = {
            column: (stype, at)
            for stype, columns in self.col_names_dict.items()
            for at, column in enumerate(columns)
        }
        is_of_edges = isinstance(owner, tuple)
        self._num_rows = store.num_edges(owner) if is_of_edges else store.num_nodes(owner)  # type: ignore[arg-type]
        if self.spec.statistics:
            self.col_stats = statistics_of(self.spec)
        self._fields = [self._stored_field(field, stypes) for field in self.spec.fields]
        # PyTorch Frame's class checks the names of columns here, and not in each batch.
        names = self.col_names_dict
        none = {
            stype: torch.empty(0, len(of_stype), device=_CPU) for stype, of_stype in names.items()
        }
        self._frame = TensorFrame(none, names, num_rows=0)

    @property
    def device(self) -> torch.device:
        """The device of gathered rows."""
        return self.store.device

    @property
    def tables(self) -> list[Table | ListTable]:
        """The tables of all columns."""
        return [stored.table for stored in self._fields]

    @property
    def feat_dict(self) -> Mapping[Any, Any]:
        """The columns by semantic type, read when they are asked for."""
        return _Columns(self)

    @property
    def y(self) -> Tensor | None:
        """The targets of the rows, as a shared tensor."""
        field = next((f for f in self.spec.fields if f.stype == TARGET), None)
        return None if field is None else self._tensor(field)

    def source(self, name: str) -> FrameSource:
        """Returns the frame as the source of another store, under a name. Rows are read piece by
        piece.
        """
        source = FrameSource(self.spec)
        for stored in self._fields:
            table, key = stored.table, stored.field.table(name)
            if isinstance(table, ListTable):
                source.elements[key] = _rows_of(table.elements)
                table = table.bounds
            source.tables[key] = _rows_of(table)
        return source

    def materialize(self) -> Any:
        """Returns all rows as a plain frame on the CPU. Synchronises."""
        ends = [stored.ends.cpu().clone() for stored in self._fields if stored.ends is not None]
        return self._plain(len(self), [_all_rows(of.table) for of in self._fields], iter(ends))

    def __getitem__(self, index: Any) -> Any:
        ids = _row_ids(index, len(self)).to(self.store.device)
        reads = FrameReads([(self, ids)])
        return reads.frames(gather_tables(reads.reads))[0]

    def __copy__(self) -> StoredFrame:
        return StoredFrame(self.store, self.owner, self.name)

    def __deepcopy__(self, memo: Any) -> StoredFrame:
        return self.__copy__()  # nothing can be written to it

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unchanged, (self.materialize(),)

    def reduce_to_process(self) -> Any:
        """Pickles a handle: another process of the machine reads the same memory."""
        return StoredFrame, (self.store, self.owner, self.name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("feat_dict", "y"):
            raise NotImplementedError(
                f"tf.{name} = values: the rows of a shared frame are in the store; put a plain "
                "frame in the data and share it again"
            )
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Any], Any]) -> Any:
        return self.materialize()._apply(fn)

    def _stored_field(self, field: FrameField, stypes: Any) -> _StoredField:
        is_target, name = field.stype == TARGET, field.table(self.name)
        table_of = self.store.edge_table if isinstance(self.owner, tuple) else self.store.node_table
        rows: Table = table_of(name, self.owner)  # type: ignore[arg-type]
        table: Table | ListTable = rows
        ends, columns = None, 0
        if field.layout == "joined":
            ends, columns = torch.tensor(field.ends, device=self.store.device), len(field.ends) - 1
        elif field.layout == "lists":
            table = ListTable(rows, self.store.list_values(name, self.owner))
            columns = len(self.spec.columns[field.stype])
        stype = None if is_target else stypes(field.stype)
        return _StoredField(field, stype, table, ends, columns)

    def _tensor(self, field: FrameField) -> TableTensor:
        return TableTensor(self.store, self.owner, field.table(self.name))

    def _plain(
        self,
        count: int,
        rows: Iterable[Tensor | ListRows],
        ends: Iterator[Tensor],
    ) -> Any:
        """Returns a frame of gathered rows.

        Args:
            count: the number of rows.
            rows: the rows of each field.
            ends: of each field of joined columns, 0 and where each column ends.
        """
        columns: dict[Any, Any] = {}
        target = None
        for stored, values in zip(self._fields, rows, strict=True):
            value: Any = values
            if isinstance(values, ListRows):
                value = ragged("lists", count, stored.columns, values.elements, values.ends)
            elif stored.ends is not None:
                value = ragged("joined", count, stored.columns, values, next(ends))
            if stored.stype is None:
                target = value
            elif stored.field.key is None:
                columns[stored.stype] = value
            else:
                columns.setdefault(stored.stype, {})[stored.field.key] = value
        frame = TensorFrame.__new__(TensorFrame)
        frame.__dict__.update(self._frame.__dict__)
        frame.feat_dict, frame.y = columns, target
        frame.col_names_dict = {**self.col_names_dict}
        frame._col_to_stype_idx = {**self._col_to_stype_idx}
        frame._num_rows = None if columns else count
        if self.spec.statistics:
            frame.col_stats = self.col_stats
        return frame


class _StoredField(NamedTuple):
    """A field of a frame, and where its rows are."""

    field: FrameField
    stype: Any
    """The semantic type of PyTorch Frame; None: the targets."""
    table: Table | ListTable
    ends: Tensor | None
    """Of joined columns: 0 and where each ends, on the store's device."""
    columns: int
    """The number of joined columns, or of lists in a row."""


ForkingPickler.register(StoredFrame, StoredFrame.reduce_to_process)


def _unchanged(frame: Any) -> Any:
    return frame


class _Columns(Mapping[Any, Any]):
    """The columns of a stored frame by semantic type."""

    def __init__(self, frame: StoredFrame) -> None:
        self._frame = frame

    def __getitem__(self, stype: Any) -> Any:
        frame = self._frame
        if stype not in frame.col_names_dict:
            raise KeyError(stype)
        fields = [stored for stored in frame._fields if stored.stype == stype]
        if fields[0].field.key is None:
            return self._column(fields[0])
        return {stored.field.key: self._column(stored) for stored in fields}

    def _column(self, stored: _StoredField) -> Any:
        frame, count = self._frame, len(self._frame)
        if stored.ends is not None:
            rows, offset = frame._tensor(stored.field), stored.ends.clone()
            return ragged("joined", count, stored.columns, rows, offset)
        if isinstance(stored.table, Table):
            return frame._tensor(stored.field)
        lists = _whole_lists(stored.table)
        return ragged("lists", count, stored.columns, lists.elements, lists.ends)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._frame.col_names_dict)

    def __len__(self) -> int:
        return len(self._frame.col_names_dict)


class FrameReads:
    """Reads rows of several frames together.

    Args:
        requests: each frame, and the ids of its rows, ``[rows]`` int64 on the store's device.

    Attributes:
        reads: what to gather: tables, and the ids of their rows.
    """

    def __init__(self, requests: Sequence[tuple[StoredFrame, Tensor]]) -> None:
        self._requests = requests
        self.reads = [(table, ids) for frame, ids in requests for table in frame.tables]

    def frames(self, rows: Iterable[Tensor | ListRows]) -> list[Any]:
        """Returns plain frames of what was gathered for :attr:`reads`."""
        # Copies: a batch's frame is the user's.
        fields = (of for frame, _ in self._requests for of in frame._fields)
        ends = [of.ends for of in fields if of.ends is not None]
        sizes = [len(of) for of in ends]
        copies = iter(torch.split_with_sizes(torch.cat(ends), sizes) if ends else ())
        ahead = iter(rows)
        return [
            frame._plain(ids.numel(), [next(ahead) for _ in frame._fields], copies)
            for frame, ids in self._requests
        ]


def _rows_of(table: Table) -> RowSource:
    return RowSource(table.shape, table.dtype, table.read)


def _all_rows(table: Table | ListTable) -> Tensor | ListRows:
    """Returns all rows of a table, on the CPU."""
    return _whole_lists(table) if isinstance(table, ListTable) else table.read()


def _whole_lists(table: ListTable) -> ListRows:
    bounds, elements = table.bounds.read(), table.elements.read()
    [(ends, places)] = list_places([(bounds, len(elements))])
    # Rows of files may be in another order than their nodes, or be left out.
    in_order = torch.equal(ends[:-1], bounds[:, :-1].reshape(-1))
    is_whole = in_order and places.numel() == len(elements)
    return ListRows(ends, elements if is_whole else elements[places])


def _row_ids(index: Any, rows: int) -> Tensor:
    """Returns the ids of the rows that an index of a frame selects, as PyTorch Frame takes it."""
    if isinstance(index, slice):
        return torch.arange(*index.indices(rows), device=_CPU)
    ids = torch.as_tensor([index] if isinstance(index, int) else index)
    if ids.dtype == torch.bool:
        if tuple(ids.shape) != (rows,):
            raise IndexError(f"a mask over {rows} rows must have as many, got {list(ids.shape)}")
        return ids.nonzero().view(-1)
    if ids.numel() == 0:
        ids = ids.long()
    if ids.dim() != 1 or ids.is_floating_point():
        raise IndexError(f"rows of a frame are selected by ids [n], got {index!r}")
    ids = ids.long()
    return torch.where(ids < 0, ids + rows, ids)
