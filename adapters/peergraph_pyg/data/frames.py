"""`StoredFrame`: a table of PyTorch Frame whose rows stay in the store until they are selected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import TensorFrame

from peergraph.memory import Table, gather_tables
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

Rows = tuple[Table, Tensor]
"""A table, and the ids of the rows to read."""

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
        self._ends = {
            field: torch.tensor(field.ends, device=store.device)
            for field in self.spec.fields
            if field.layout == "joined"
        }

    @property
    def device(self) -> torch.device:
        """The device of gathered rows."""
        return self.store.device

    @property
    def feat_dict(self) -> Mapping[Any, Any]:
        """The columns by semantic type, read when they are asked for."""
        return _Columns(self)

    @property
    def y(self) -> Tensor | None:
        """The targets of the rows, as a shared tensor."""
        field = next((f for f in self.spec.fields if f.stype == TARGET), None)
        return None if field is None else self._tensor(field)

    def reads(self, ids: Tensor) -> list[Rows]:
        """Returns what to gather for rows, for :func:`frames_of` afterwards.

        Args:
            ids: ``[rows]`` int64 on the store's device.
        """
        return [(self._table(field), ids) for field in self.spec.fields]

    def source(self, name: str) -> FrameSource:
        """Returns the frame as the source of another store, under a name. Rows are read piece by
        piece.
        """
        source = FrameSource(self.spec)
        for field in self.spec.fields:
            source.tables[field.table(name)] = _rows_of(self._table(field))
        for field in self._list_fields():
            source.elements[field.table(name)] = _rows_of(self._elements(field))
        return source

    def materialize(self) -> Any:
        """Returns all rows as a plain frame on the CPU. Synchronises."""
        rows = [self._table(field).read() for field in self.spec.fields]
        pairs = zip(self._list_fields(), self._bounds(rows), strict=True)
        lists = [self._whole_lists(field, bounds) for field, bounds in pairs]
        ends, elements = iter([end for end, _ in lists]), iter([values for _, values in lists])
        return self._plain(len(self), rows, ends, elements)

    def __getitem__(self, index: Any) -> Any:
        ids = _row_ids(index, len(self)).to(self.store.device)
        return frames_of([(self, ids)], gather_tables(self.reads(ids)))[0]

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

    def _list_fields(self) -> list[FrameField]:
        return [field for field in self.spec.fields if field.layout == "lists"]

    def _table(self, field: FrameField) -> Table:
        table = field.table(self.name)
        if isinstance(self.owner, tuple):
            return self.store.edge_table(table, self.owner)
        return self.store.node_table(table, self.owner)

    def _elements(self, field: FrameField) -> Table:
        return self.store.list_values(field.table(self.name), self.owner)

    def _whole_lists(self, field: FrameField, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the ends of the lists of all rows, and their elements, on the CPU."""
        elements, ((ends, places),) = self._elements(field).read(), _places_of_lists([bounds])
        # Rows of files may be in another order than their nodes, or be left out.
        in_order = torch.equal(ends[:-1].view(-1, bounds.size(1) - 1), bounds[:, :-1])
        return ends, elements if in_order and places.numel() == len(elements) else elements[places]

    def _tensor(self, field: FrameField) -> TableTensor:
        return TableTensor(self.store, self.owner, field.table(self.name))

    def _bounds(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """Of the rows of all fields, returns those that say where lists begin and end."""
        pairs = zip(self.spec.fields, rows, strict=True)
        return [bounds for field, bounds in pairs if field.layout == "lists"]

    def _plain(
        self,
        count: int,
        rows: Iterable[Tensor],
        ends: Iterator[Tensor],
        elements: Iterator[Tensor],
    ) -> Any:
        """Returns a frame of gathered rows.

        Args:
            count: the number of rows.
            rows: the rows of each field.
            ends: of each field of lists, 0 and where each list ends, ``[rows * columns + 1]``.
            elements: of each field of lists, the elements.
        """
        columns: dict[Any, Any] = {}
        target, stypes = None, stype_class()
        for field, values in zip(self.spec.fields, rows, strict=True):
            value: Any = values
            if field.layout == "joined":
                offset = self._ends[field].to(values.device, copy=True)
                value = ragged("joined", count, len(field.ends) - 1, values, offset)
            elif field.layout == "lists":
                width = len(self.spec.columns[field.stype])
                value = ragged("lists", count, width, next(elements), next(ends))
            if field.stype == TARGET:
                target = value
            elif field.key is None:
                columns[stypes(field.stype)] = value
            else:
                columns.setdefault(stypes(field.stype), {})[field.key] = value
        frame = TensorFrame(columns, {**self.col_names_dict}, target, None if columns else count)
        if self.spec.statistics:
            frame.col_stats = self.col_stats
        return frame


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
        fields = [field for field in frame.spec.fields if field.stype == stype.value]
        if fields[0].key is None:
            return self._column(fields[0])
        return {field.key: self._column(field) for field in fields}

    def _column(self, field: FrameField) -> Any:
        frame, count = self._frame, len(self._frame)
        if field.layout == "dense":
            return frame._tensor(field)
        if field.layout == "joined":
            offset, width = frame._ends[field].clone(), len(field.ends) - 1
            return ragged("joined", count, width, frame._tensor(field), offset)
        ends, elements = frame._whole_lists(field, frame._table(field).read())
        return ragged("lists", count, len(frame.spec.columns[field.stype]), elements, ends)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._frame.col_names_dict)

    def __len__(self) -> int:
        return len(self._frame.col_names_dict)


def frames_of(requests: Sequence[tuple[StoredFrame, Tensor]], rows: Sequence[Tensor]) -> list[Any]:
    """Returns the rows of frames as plain frames, with the elements of their lists, which are
    gathered together. Waits for the GPU once, if there are lists.

    Args:
        requests: each frame, and the ids of its rows, as :meth:`StoredFrame.reads` takes them.
        rows: the rows that the frames' reads gave, one after the other.
    """
    ahead = iter(rows)
    parts = [[next(ahead) for _ in frame.spec.fields] for frame, _ in requests]
    pairs = [
        (frame._elements(field), bounds)
        for (frame, _), part in zip(requests, parts, strict=True)
        for field, bounds in zip(frame._list_fields(), frame._bounds(part), strict=True)
    ]
    places = _places_of_lists([bounds for _, bounds in pairs])
    reads = [(table, at) for (table, _), (_, at) in zip(pairs, places, strict=True)]
    elements = iter(gather_tables(reads) if reads else ())
    ends = iter([end for end, _ in places])
    return [
        frame._plain(ids.numel(), part, ends, elements)
        for (frame, ids), part in zip(requests, parts, strict=True)
    ]


def _rows_of(table: Table) -> RowSource:
    return RowSource(table.shape, table.dtype, table.read)


def _places_of_lists(bounds: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Returns where the lists of some rows end, and where their elements are in the store.

    Waits for the device once. The steps are those of all fields together: a batch has many.

    Args:
        bounds: of each field, ``[rows, columns + 1]`` where the lists of each row begin, and the
            end of the last one.

    Returns:
        Of each field, ``[rows * columns + 1]`` from 0, and ``[elements]``.
    """
    if not bounds:
        return []
    lengths = torch.cat([of.diff(dim=1).view(-1) for of in bounds])
    begins = torch.cat([of[:, :-1].reshape(-1) for of in bounds])
    ends = torch.zeros(lengths.numel() + 1, dtype=torch.int64, device=lengths.device)
    torch.cumsum(lengths, 0, out=ends[1:])
    cuts = [0, *accumulate(of.size(0) * (of.size(1) - 1) for of in bounds)]
    firsts = ends[torch.tensor(cuts, device=ends.device)].tolist()
    places = torch.repeat_interleave(begins - ends[:-1], lengths, output_size=firsts[-1])
    places += torch.arange(firsts[-1], device=places.device)
    return [
        (ends[cut : after + 1] - first, places[first:last])
        for (cut, after), (first, last) in zip(pairwise(cuts), pairwise(firsts), strict=True)
    ]


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
