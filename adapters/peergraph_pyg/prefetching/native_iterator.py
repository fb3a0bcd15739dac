"""`NativeIterator`: the loop's thread does what needs Python, and a thread of C++ all the rest."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from peergraph import PeerLostError, sampling
from peergraph.integration import Unsupported, require
from peergraph.memory import ListRows
from peergraph.profiling import WAIT_BATCH, profile_range
from peergraph.sampling import BatchRequest, BatchTables, BatchThread
from peergraph.store import EDGE, NODE, Store

from ..loader.batch_negatives import HardNegatives, InBatchNegatives
from ..loader.filter_batch import ReadyRows, tables_of, with_rows
from ..loader.sampler import NeighborSampler
from ..loader.unfinished import SampleRequest, begin_output, collected_requests
from .loop_rng import DrawsAhead, LoopRng
from .prefetch_iterator import PrefetchOptions
from .thread_state import return_stream, take_stream

_OWN_ITERATOR = "an iterator of its own"
_OF_POSITIVES = InBatchNegatives, HardNegatives


@dataclass
class _Pending:
    """A batch that is being made, an error, or the end of the iteration."""

    output: Any
    sample: SampleRequest | None
    request: BatchRequest | None
    error: Exception | None
    random_state: Tensor


class NativeIterator:
    """Iterates a loader; its samples, and rows for them, are made ahead without Python's lock.

    ``next`` begins a batch that is to be made ahead: takes its seeds, draws its random numbers. The
    thread samples and gathers. A later ``next`` makes PyG's batch of what the thread has made.

    Args:
        loader: that :func:`native_iterator` has checked.
        batches: torch's iterator of it, whose order of seeds is read.
        rows: the tables that its batches have rows of.
        depth, options, store: as those of :class:`PrefetchIterator`.
    """

    def __init__(
        self,
        loader: NodeLoader | LinkLoader,
        batches: _SingleProcessDataLoaderIter,
        rows: _Rows,
        depth: int,
        options: PrefetchOptions,
        store: Store,
    ) -> None:
        self._loader, self._batches, self._rows, self._store = loader, batches, rows, store
        self._rng, self._draws = LoopRng(), DrawsAhead()
        self._is_over = False
        device = torch.device(store.device)
        # The second stream reads the times of negatives, for which the loop waits: on its own
        # stream it would wait for the model, and on the thread's for the batch in work.
        streams: list[torch.cuda.Stream | None] = [None, None]
        if device.type == "cuda":
            streams = [take_stream(device, options.priority) for _ in streams]
        self._draw_stream = streams[1]
        self._thread = BatchThread(device, streams[0], options.blocks_on(device))
        self._pending: deque[_Pending] = deque()
        self._close = weakref.finalize(self, _stop, self._thread, streams, options)
        for _ in range(depth):
            self._begin(waits=False)

    def __iter__(self) -> NativeIterator:
        return self

    def __len__(self) -> int:
        """Returns the number of batches of the whole iteration, by the loader's own iterator."""
        return len(self._batches)

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        self._check_open()
        if not self._pending:  # an exception from elsewhere has come instead
            self._begin()
        pending = self._pending[0]
        batch = None
        if pending.request is not None:
            try:
                with profile_range(WAIT_BATCH):
                    batch = self._thread.take(pending.request)
            except Exception as error:
                self._check_open()
                pending.error = error
        self._pending.popleft()
        seed = self._rng.follow(pending.random_state)
        if isinstance(pending.error, StopIteration):
            self._is_over = True
            self.close()
        else:
            if seed is not None:
                self._draws.reseed(seed)
            self._begin()
        if pending.error is not None:
            try:
                raise pending.error
            finally:
                del pending  # otherwise the traceback and the exception keep each other alive
        if pending.sample is None:
            return self._loader.filter_fn(pending.output)
        pending.sample.finish(None if batch is None else batch.sample)
        ready = self._rows.ready(pending.output, [] if batch is None else batch.rows)
        with with_rows(ready):
            return self._loader.filter_fn(pending.output)

    def close(self) -> None:
        """Ends the thread after the batch that it is making. Then the iteration is over."""
        self._close()

    def _check_open(self) -> None:
        if self._close.alive:
            return
        self._is_over = True
        if self._store.closed:
            raise RuntimeError("this store has been closed: there are no more batches of it")
        raise StopIteration

    def _begin(self, *, waits: bool = True) -> None:
        """Begins the next batch; the thread waits for the work of the loop's stream so far, if it
        `waits`.
        """
        if self._pending and isinstance(self._pending[-1].error, StopIteration):
            return
        output, sample, request, error = None, None, None, None
        try:
            with self._draws.entered(), collected_requests() as samples:
                output = self._begin_output(next(self._batches._sampler_iter))
                if samples:
                    [sample] = samples
                    request = self._submit(sample, waits)
        except PeerLostError:  # of the training, not of this batch
            raise
        except Exception as raised:
            error = raised
        self._pending.append(_Pending(output, sample, request, error, self._draws.state))

    def _begin_output(self, index: Any) -> Any:
        loader = self._loader
        if not isinstance(index, Tensor):
            index = [loader.dataset[position] for position in index]
        negatives, stream = getattr(loader, "neg_sampling", None), self._draw_stream
        # The loop's stream may be writing weights.
        draws = negatives is not None and loader.link_sampler.is_temporal
        in_order = stream is None or not draws or _are_on_gpu(negatives)
        with nullcontext() if in_order else torch.cuda.stream(stream):
            return begin_output(loader, index)

    def _submit(self, sample: SampleRequest, waits: bool) -> BatchRequest | None:
        if _are_reads_counted(sample.core.store, self._store):
            return None
        tables = self._rows.tables(sample.core)
        if tables is None:
            return None
        return self._thread.submit(
            sample.core,
            sample.nodes,
            sample.seed,
            tables,
            seed_time=sample.seed_time,
            seed_start=sample.seed_start,
            waits=waits,
        )


class _Rows:
    """The rows that the batches of a loader get.

    Args:
        sampler: the loader's.
        tables: as of :func:`tables_of`.
    """

    def __init__(self, sampler: NeighborSampler, tables: list[Any]) -> None:
        self._sampler, self._tables = sampler, tables
        self._core: Any = None
        self._native: BatchTables | None = None

    def tables(self, core: sampling.NeighborSampler) -> BatchTables | None:
        """Returns the tables for a sample; None if they cannot be gathered ahead."""
        if self._core is not core:
            owned = [(self._owner(*of_table), table) for *of_table, table in self._tables]
            self._core, self._native = core, BatchTables.of(core.store, owned)
        return self._native

    def ready(self, output: Any, rows: list[Tensor | ListRows]) -> ReadyRows:
        """Returns the rows that were gathered for an output; there may be none."""
        reads = []
        for owner, of_edges, table in self._tables if rows else ():
            ids = output.edge if of_edges else output.node
            reads.append((table, ids if owner is None else ids.get(owner)))
        return ReadyRows(reads, rows)

    def _owner(self, owner: Any, of_edges: bool) -> Any:
        if not of_edges:
            return NODE if owner is None else owner
        return self._sampler.sampled_edge_type(EDGE if owner is None else owner)


def native_iterator(
    loader: Any,
    batches: Iterator[Any],
    depth: int,
    options: PrefetchOptions,
    store: Store | None,
) -> NativeIterator:
    """Returns the batches of a loader.

    Args:
        loader: a loader of PyG, or a wrapper of it.
        batches: its iterator, not begun; unchanged where this raises.
        depth, options, store: as those of :class:`PrefetchIterator`.

    Raises:
        Unsupported: the batches need Python on the way; says why.
    """
    rows = rows_ahead(loader, store)
    iterator = getattr(batches, "iterator", batches)  # PyG's gathers rows after torch's
    if store is None or type(iterator) is not _SingleProcessDataLoaderIter:
        raise Unsupported(_OWN_ITERATOR)
    return NativeIterator(loader, iterator, rows, depth, options, store)


def rows_ahead(loader: Any, store: Store | None) -> _Rows:
    """Returns the tables that a loader's batches have rows of, if a thread of C++ can make them.

    Raises:
        Unsupported: as :func:`native_iterator`.
    """
    if store is None:
        raise Unsupported("the data is not shared")
    is_supported = BatchThread.is_supported(torch.device(store.device))
    require(is_supported, "this version of torch lacks a function that a thread of C++ needs")
    _require_fit(loader)
    sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
    require(not _are_reads_counted(sampler.core.store, store), "reads are counted")
    tables = tables_of(loader.data)
    if tables is None:
        raise Unsupported("adjacency matrices, or attributes that are not shared")
    rows = _Rows(sampler, tables)
    is_in_reach = rows.tables(sampler.core) is not None
    require(is_in_reach, "rows in host memory beside a GPU, or on disk")
    return rows


def _require_fit(loader: Any) -> None:
    """Raises Unsupported unless only the seeds and negatives of a loader's batches, and what it
    makes of them in the end, need Python.
    """
    kind = NodeLoader if isinstance(loader, NodeLoader) else LinkLoader
    is_pygs = isinstance(loader, kind) and type(loader).filter_fn is kind.filter_fn
    require(is_pygs, "a loader that is not PyG's")
    require(loader.num_workers == 0, "workers of torch")
    iterates = type(loader).__iter__, type(loader)._get_iterator
    require(iterates == (kind.__iter__, kind._get_iterator), _OWN_ITERATOR)
    is_pygs = getattr(loader.collate_fn, "__func__", None) is kind.collate_fn
    require(is_pygs, "a collate_fn of its own")
    require(not loader.pin_memory, "pin_memory")
    require(loader.batch_sampler is not None, "a loader without batches of seeds")
    require(loader.transform is None, "a transform")
    require(loader.transform_sampler_output is None, "a transform_sampler_output")
    sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
    require(type(sampler) is NeighborSampler, f"a {type(sampler).__name__}")
    require(isinstance(loader.data, (Data, HeteroData)), "a pair of stores")
    made_of_edges = sampler.subgraph_type is SubgraphType.bidirectional
    require(not made_of_edges, "subgraph_type='bidirectional'")
    require(not _are_on_gpu(loader.input_data), "seeds on a GPU")
    negatives = getattr(loader, "neg_sampling", None)
    is_own = type(negatives) not in (type(None), NegativeSampling, *_OF_POSITIVES)
    require(not is_own, f"negatives by {type(negatives).__name__}")
    of_lists = type(negatives) in _OF_POSITIVES
    require(not (of_lists and _are_on_gpu(negatives)), "lists of negatives on a GPU")


def _are_on_gpu(values: Any) -> bool:
    """Returns whether some attributes of an object are tensors on a GPU."""
    return any(isinstance(value, Tensor) and value.is_cuda for value in vars(values).values())


def _are_reads_counted(*stores: Store) -> bool:
    """Returns whether reads of a store are counted, where the loop makes batches."""
    return any(store.measuring is not None for store in stores)


def _stop(
    thread: BatchThread, streams: list[torch.cuda.Stream | None], options: PrefetchOptions
) -> None:
    thread.close()
    for stream in streams:
        if stream is not None:
            return_stream(stream, options.priority)
