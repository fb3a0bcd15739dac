"""A thread of C++ that makes batches ahead, without Python's lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from peergraph import _C
from peergraph.memory import ListRows, ListTable, Table
from peergraph.memory.device.launching import launch_on, stream_address, with_index
from peergraph.memory.device.torch_functions import adopt_tensors, torch_functions
from peergraph.memory.table.list_table import list_sizes
from peergraph.memory.table.stored_table import stored_tables
from peergraph.sampling.neighbor.native_result import ResultArrays, ResultCounts
from peergraph.sampling.neighbor.neighbor_sampler import NeighborSampler, Seeds
from peergraph.sampling.neighbor.workspace import MOST_SCRATCH, Workspace, WorkspacePool
from peergraph.sampling.sample import EdgeType, NodeType, Sample

if TYPE_CHECKING:
    from peergraph.store import Store

# A loop that waits for a batch runs Python's signal handlers, and sees that the thread was closed,
# after this time.
_SLICE_S = 0.05


class BatchTables:
    """Tables whose rows batches get: of a sample's nodes of a type, or edges of a relation.

    Attributes:
        native: the tables for a thread.
        have_lists: whether the rows of each table are lists.
    """

    def __init__(self, native: _C.TablesOfBatch, have_lists: Sequence[bool]) -> None:
        self.native = native
        self.have_lists = have_lists

    @classmethod
    def of(
        cls, store: Store, tables: Sequence[tuple[NodeType | EdgeType, Table | ListTable]]
    ) -> BatchTables | None:
        """Returns the tables; None if some rows are not gathered by kernels of the device.

        Args:
            store: that samples are drawn from.
            tables: a node type or an edge type of the store, and a table of it.
        """
        native = []
        for owner, table in tables:
            of_edges = isinstance(owner, tuple)
            types = list(store.edge_types if of_edges else store.node_types)
            stored = stored_tables(table)
            if stored is None or owner not in types:
                return None
            native.append((*stored, of_edges, types.index(owner)))
        have_lists = [isinstance(table, ListTable) for _, table in tables]
        return cls(_C.TablesOfBatch(native), have_lists)

    def rows(self, tensors: Iterable[Tensor]) -> list[Tensor | ListRows]:
        """Returns the rows of each table, of tensors that a thread has made."""
        ahead = iter(tensors)
        return [
            ListRows(next(ahead), next(ahead)) if has_lists else next(ahead)
            for has_lists in self.have_lists
        ]


class BatchRequest(NamedTuple):
    """A batch that a thread makes."""

    number: int
    sampler: NeighborSampler
    tables: BatchTables


class AheadBatch(NamedTuple):
    """A sample, and rows for its nodes and edges, in the order of :class:`BatchTables`."""

    sample: Sample
    rows: list[Tensor | ListRows]


@cache
def _waiting_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns a stream that only waits for batches: its events come after a batch, and do not wait
    for work of the loop's stream.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class BatchThread:
    """Makes batches in the order in which they are requested.

    The thread never takes Python's lock: the loop's Python runs meanwhile. What needs Python is
    done by the caller, before and after.

    Args:
        device: of the stores.
        stream: the thread's; None on the CPU.
        max_blocks: the most blocks of a gather kernel; 0: no limit.
    """

    def __init__(
        self, device: torch.device, stream: torch.cuda.Stream | None, max_blocks: int = 0
    ) -> None:
        functions, adopt = torch_functions(device.type), adopt_tensors()
        assert functions is not None
        assert adopt is not None
        self._device = with_index(device)
        self._max_blocks = max_blocks
        self._stream = stream
        self._waiting = None if stream is None else _waiting_stream(self._device)
        self._native = _C.BatchThread(
            torch=functions,
            launch=launch_on(self._device, stream),
            most_scratch=MOST_SCRATCH[device.type],
            adopt=adopt,
        )
        self._count = 0  # of requests
        self._pool: WorkspacePool | None = None
        self._workspace: Workspace | None = None
        self._number = 0  # of the work space
        self._is_closed = False

    @staticmethod
    def is_supported(device: torch.device) -> bool:
        """Returns whether this version of torch has the functions that the thread needs."""
        return torch_functions(device.type) is not None

    def submit(
        self,
        sampler: NeighborSampler,
        seeds: Seeds,
        seed: int,
        tables: BatchTables,
        *,
        seed_time: Seeds | None = None,
        seed_start: Seeds | None = None,
        waits: bool = True,
    ) -> BatchRequest:
        """Requests a batch.

        Args:
            sampler, seeds, seed, seed_time, seed_start: as :meth:`NeighborSampler.sample`; tensors
                are on the CPU.
            tables: what to gather.
            waits: whether the thread makes it after the work of the current stream so far.

        Returns:
            What :meth:`take` takes.

        Raises what :meth:`NeighborSampler.sample` raises for arguments that are wrong; seeds that
        are no nodes make the batch fail.
        """
        after = stream_address(self._device) if waits and self._stream is not None else None
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            request = sampler.request(seeds, seed, seed_time, seed_start)
            workspace = self._workspace_of(sampler)
        sizes = list_sizes(sum(tables.have_lists), self._device)
        self._count += 1
        self._native.submit(
            number=self._count,
            sampler=request.native,
            seeds=request.seeds,
            seed=request.seed,
            seed_times=request.times.latest,
            seed_starts=request.times.earliest,
            maps=workspace.node_maps,
            mailbox=workspace.mailbox,
            work_space=self._number,
            tables=tables.native,
            list_sizes=sizes,
            max_blocks=self._max_blocks,
            num_threads=torch.get_num_threads(),
            after=after,
            memory=(sampler, request, workspace, sizes),
        )
        return BatchRequest(self._count, sampler, tables)

    def take(self, request: BatchRequest) -> AheadBatch | None:
        """Waits for a batch; the current stream waits for the thread's work. Batches are taken in
        the order of their requests; those that are left out are dropped.

        Returns:
            None: there was no memory for it, or it was dropped.

        Raises:
            RuntimeError: the thread has ended, or this is a forked process.

        Raises also what :meth:`NeighborSampler.sample` and
        :func:`peergraph.memory.gather_tables` raise.
        """
        result = None
        # After an interrupt, older batches may be left, or this one may have been taken already.
        while (oldest := self._native.oldest) is not None and oldest <= request.number:
            while not self._native.wait(_SLICE_S):
                if self._is_closed:
                    raise RuntimeError("the thread that makes batches has ended")
            batch = self._take_oldest()
            result = batch if oldest == request.number else None
        if result is None:
            return None
        counts, tensors, rows = result
        arrays = ResultArrays.of(*tensors)
        if self._waiting is not None:
            reader = torch.cuda.current_stream(self._device)
            arrays.ready = self._waiting.record_event()
            reader.wait_event(arrays.ready)
            for tensor in (*tensors, *rows):
                if tensor is not None:
                    tensor.record_stream(reader)
        sample = request.sampler.sample_of(arrays, ResultCounts(*counts))
        return AheadBatch(sample, request.tables.rows(rows))

    def _take_oldest(self) -> Any:
        batch = None
        try:
            batch = self._native.take(0 if self._waiting is None else self._waiting.cuda_stream)
        finally:
            if batch is None:
                self._pool = self._workspace = None  # what its maps contain is not defined
        return batch

    def close(self) -> None:
        """Ends the thread after the batch that it is making; drops the others."""
        self._is_closed = True
        self._native.close()
        workspace, self._workspace = self._workspace, None
        if workspace is not None and self._pool is not None and not self._native.has_failed:
            self._pool.take_back(workspace)

    def _workspace_of(self, sampler: NeighborSampler) -> Workspace:
        """Returns the work space of a sampler's batches, which are made one after the other."""
        if self._workspace is None or self._pool is not sampler.workspaces:
            # Queued requests still use the former work space: it does not return to its pool.
            self._pool = sampler.workspaces
            self._workspace = self._pool.lend()
            self._number += 1
        return self._workspace
