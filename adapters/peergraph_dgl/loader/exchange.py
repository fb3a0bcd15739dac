"""Loaders over a store that is split over machines: their batches get rows of other machines."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl import DGLGraph
from dgl.dataloading.dataloader import restore_parent_storage_columns
from dgl.frame import Frame, LazyFeature
from torch import Tensor

from peergraph.integration import ExchangeIterator, is_split
from peergraph.memory import DistributedTable, FetchedRows, Table

from ..compat import frame_columns
from ..graph.columns import StoreColumn
from ..graph.storages import TableStorage, TypedStorage
from ..graph.store_of import find_store

Request = tuple[Table, Tensor]

_only_samples: ContextVar[bool] = ContextVar("peergraph_dgl_only_samples", default=False)


@contextmanager
def only_samples() -> Iterator[None]:
    """Returns a context in which a loader over a split store iterates samples without features."""
    token = _only_samples.set(True)
    try:
        yield
    finally:
        _only_samples.reset(token)


def iterate(loader: Any, batches: Any) -> Any:
    """Returns the iterator of a loader; its store may be split over machines.

    Args:
        loader: a loader of DGL.
        batches: DGL's iterator of the loader, at its beginning.
    """
    if not is_split(find_store(loader.graph)):
        return batches
    samples = Samples(loader, batches)
    return samples if _only_samples.get() else exchange_rows(loader, samples)


def exchange_rows(loader: Any, samples: Iterator[Any]) -> ExchangeIterator:
    """Returns the batches of a loader, with rows of other machines.

    Args:
        loader: a loader of DGL.
        samples: a :class:`Samples`, or a wrapper of it.
    """
    store = find_store(loader.graph)
    assert store is not None
    return ExchangeIterator(
        store,
        samples,
        lambda sample: sample.requests(),
        lambda sample, fetched: sample.make_batch(fetched),
        f"dgl.dataloading.DataLoader with {type(loader.graph_sampler).__name__}",
        record_stream=_record_stream,
    )


class Samples:
    """The samples of a loader: batches before their features are read.

    Args:
        loader: a loader of DGL.
        batches: DGL's iterator of the loader, which reads features, at its beginning.
    """

    # Samples are made on demand, as in DGL's own iterator.
    use_thread = False

    def __init__(self, loader: Any, batches: Any) -> None:
        self.dataloader_it = batches.dataloader_it
        self._loader = loader
        self._store: Any = find_store(loader.graph)
        self._batches = batches

    def __iter__(self) -> Samples:
        return self

    def __len__(self) -> int:
        """Returns the number of samples of the whole iteration."""
        return len(self._loader)

    def __next__(self) -> Sample:
        sample = next(self.dataloader_it)
        for graph in _graphs(sample):
            restore_parent_storage_columns(graph, self._loader.graph)
            for frame in (*graph._node_frames, *graph._edge_frames):
                for column in frame_columns(frame).values():
                    if isinstance(column, StoreColumn):
                        column.connect(self._store)
        return Sample(sample, self._loader, self._batches)


@dataclass
class Sample:
    """A sample that can be turned into a batch.

    Args:
        value: graphs and ids as a sampler of DGL returns them.
        loader: the loader of DGL.
        batches: DGL's iterator of the loader.
    """

    value: Any
    loader: Any
    batches: Any

    def requests(self) -> list[Request]:
        """Returns the split tables that the batch may read, with the ids of the rows.

        These are the tables of the node columns that the sampler prefetches. If it prefetches no
        split node column, they are the tables of all node columns. The same holds for edge columns.
        """
        all_requests: list[Request] = []
        for domain in ("node", "edge"):
            columns = list(self._frame_columns(domain))
            prefetched = [self._prefetched(*c) for c in columns if isinstance(c[-1], LazyFeature)]
            named = _split_only(prefetched)
            if not named:
                lazy = [c[-1].selected() for c in columns if isinstance(c[-1], StoreColumn)]
                named = _split_only(lazy)
            all_requests += named
        others = (self._attached_requests(item) for item in _items(self.value, LazyFeature))
        all_requests += _split_only(request for requests in others for request in requests)
        return _without_prefixes(all_requests)

    def make_batch(self, fetched: FetchedRows) -> Any:
        """Makes the batch. DGL's iterator reads the columns that the sampler prefetches; other
        columns keep the fetched rows and are read on first use.
        """
        for domain in ("node", "edge"):
            for *_, column in self._frame_columns(domain):
                if isinstance(column, StoreColumn) and _split_only([column.selected()]):
                    column.fetched = fetched
        self.batches.dataloader_it = iter((self.value,))
        return next(self.batches)

    def _frame_columns(self, domain: str) -> Iterator[tuple[Frame, Any, str, Any]]:
        """Yields the frame, type, name and column of all node columns, or of all edge columns."""
        for graph in _graphs(self.value):
            frames, types = {
                "node": (graph._node_frames, graph.ntypes),
                "edge": (graph._edge_frames, graph.canonical_etypes),
            }[domain]
            for frame, kind in zip(frames, types, strict=True):
                for name, column in frame_columns(frame).items():
                    yield frame, kind, name, column

    def _prefetched(
        self, frame: Frame, kind: Any, name: str, column: LazyFeature
    ) -> Request | None:
        """Returns the read of a column by DGL's iterator; None if it reads no table."""
        of_edges, graph = isinstance(kind, tuple), self.loader.graph
        ids = frame.get(dgl.EID if of_edges else dgl.NID) if column.id_ is None else column.id_
        storage = (graph.get_edge_storage if of_edges else graph.get_node_storage)(
            column.name or name, kind
        )
        table = _table_of(storage)
        return None if table is None or ids is None else (table, ids)

    def _attached_requests(self, item: LazyFeature) -> Iterator[Request | None]:
        """Yields the reads of the storages that users attached, by DGL's iterator."""
        storage = self.loader.other_storages[item.name]
        if isinstance(storage, TypedStorage):
            for owner, ids in item.id_.items():
                yield storage.storages[owner].table, ids
        elif (table := _table_of(storage)) is not None:
            yield table, item.id_


def _table_of(storage: Any) -> Table | None:
    if isinstance(storage, StoreColumn):
        return None if storage.table is None else storage.table.table
    return storage.table if isinstance(storage, TableStorage) else None


def _split_only(requests: Iterable[Request | None]) -> list[Request]:
    return [r for r in requests if r is not None and isinstance(r[0], DistributedTable)]


def _without_prefixes(requests: list[Request]) -> list[Request]:
    """Drops a list of ids that is the beginning of another list for the same table. For example,
    the nodes of a block begin with the nodes of the next block.
    """
    longest: dict[Hashable, Request] = {}
    for table, ids in requests:
        key = id(table), ids.data_ptr(), ids.stride(), ids.dtype
        if key not in longest or ids.numel() > longest[key][1].numel():
            longest[key] = table, ids
    return list(longest.values())


def _items(batch: Any, kind: type) -> Iterator[Any]:
    """Yields the objects of a class within nested lists, tuples and dicts."""
    if isinstance(batch, kind):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _items(value, kind)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _items(value, kind)


def _graphs(batch: Any) -> Iterator[Any]:
    return _items(batch, DGLGraph)


def _record_stream(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keeps the memory of a batch, or of a sample, until a stream has used it."""
    if isinstance(batch, Sample):
        batch = batch.value
    for item in (*_graphs(batch), *_items(batch, Tensor), *_lazy_feature_ids(batch)):
        if item.device.type == "cuda":
            item.record_stream(stream)


def _lazy_feature_ids(batch: Any) -> Iterator[Tensor]:
    """Yields the ids of the features that DGL's iterator will read."""
    frames = (
        frame for graph in _graphs(batch) for frame in graph._node_frames + graph._edge_frames
    )
    columns = [column for frame in frames for column in frame_columns(frame).values()]
    for feature in (*_items(batch, LazyFeature), *_items(columns, LazyFeature)):
        yield from _items(feature.id_, Tensor)
