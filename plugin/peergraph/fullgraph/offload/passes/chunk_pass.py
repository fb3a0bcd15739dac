"""A pass over all chunks: rows come and go beside the work on a chunk (HongTu 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.copy_queue import CopyQueue, InFlight, copy_queue
from peergraph.fullgraph.offload.passes.gradient_window import GradientWindow
from peergraph.fullgraph.offload.passes.pass_progress import PassProgress
from peergraph.fullgraph.offload.passes.windows import RowWindow, SourceCopies, SourceWindow
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.rows.transfer_counts import TransferCounts
from peergraph.profiling import CHUNK, count_bytes, profile_range

Operand = tuple[RowStore, ChunkedCsc]
"""Rows of sources, and the edges from them."""


class ChunkPass:
    """Visits this rank's chunks, each with the rows that the work on it reads and writes.

        with ChunkPass(chunks, reads=[x], sources=[(h, csc)], writes=[out]) as chunk_pass:
            for chunk in chunk_pass:
                rows, edges = chunk.sources(h)
                sums = edges.spmm("copy_u", "sum", rows)
                chunk.write(out, work(sums, chunk.rows(x)))

    Collective where a structure has sources on other ranks: all ranks make the same pass. What it
    wrote may be read from the device as soon as the context has ended. Where work raises an error,
    the contents of `writes` and `gradients` mean nothing afterwards.

    Args:
        chunks: of the rows that are visited, the destinations of all structures.
        reads: stores of the same rows as `chunks`, of which each chunk reads its own rows.
        sources: stores that are read by the edges of a structure.
        writes: stores of the same rows as `chunks`, of which each chunk writes its own rows.
        gradients: stores of the rows of a structure's sources. The pass overwrites each with the
            sums of what the chunks add: a row that no chunk adds to becomes zero.

    Raises:
        ValueError: a store or structure with other rows or chunks.
    """

    def __init__(
        self,
        chunks: Chunks,
        *,
        reads: Sequence[RowStore] = (),
        sources: Sequence[Operand] = (),
        writes: Sequence[RowStore] = (),
        gradients: Sequence[Operand] = (),
    ) -> None:
        self.chunks = chunks
        """Of the rows that are visited."""
        self.counts = TransferCounts()
        """Bytes that were moved so far."""
        self._reads, self._writes = list(reads), list(writes)
        for name, stores in (("reads", reads), ("writes", writes)):
            for store in stores:
                if store.row_layout is not chunks.row_layout:
                    raise ValueError(
                        f"{name} must have the rows of {chunks.row_layout}, got {store}"
                    )
        for name, operands in (("sources", sources), ("gradients", gradients)):
            for store, csc in operands:
                if (
                    csc.chunks.offsets != chunks.offsets
                    or csc.chunks.row_layout is not chunks.row_layout
                ):
                    raise ValueError(f"{name} must have {chunks} as destinations, got {csc}")
                if store.row_layout is not csc.source_layout:
                    raise ValueError(
                        f"{name} must have the rows of {csc.source_layout}, got {store}"
                    )
        structures = [csc for _, csc in (*sources, *gradients)]
        self._structures = {id(csc): csc for csc in structures}
        self._sources, self._gradients = list(sources), list(gradients)
        self._copies = SourceCopies(self._sources)
        # Gradients need a row for each source row of the chunk alone.
        self._is_whole = {
            id(csc): not csc.needs_remote_rows
            and all(self._copies.find(store).in_place for store, other in sources if other is csc)
            and all(other is not csc for _, other in gradients)
            for csc in structures
        }
        windowed = [csc for csc in structures if not self._is_whole[id(csc)]]
        # Where ranks exchange rows they all take the order of the same structure.
        windowed.sort(key=lambda csc: not csc.needs_remote_rows)
        self._leader = windowed[0] if windowed else None
        self._order = self._leader.order if self._leader else tuple(range(chunks.count))
        self._device = chunks.row_layout.group.device
        self._rows: dict[int, RowWindow] = {}
        self._windows: dict[tuple[int, int], SourceWindow] = {}
        self._sums: dict[tuple[int, int], GradientWindow] = {}
        self._written = InFlight()
        self._loading = InFlight()

    def __enter__(self) -> ChunkPass:
        self._trace = self._find_trace()
        self.counts.to_device += self._copies.load()
        for store in self._reads:
            self._rows[id(store)] = RowWindow(self.chunks, self._copies.find(store))
        for store, csc in self._sources:
            if not self._is_whole[id(csc)]:
                transfers = csc.transfers(self._leader)
                window = SourceWindow(transfers, self._copies.find(store))
                self._windows[id(store), id(csc)] = window
        for store, csc in self._gradients:
            transfers = csc.transfers(self._leader)
            sums = GradientWindow(transfers, store, self._queue("write", store))
            self._sums[id(store), id(csc)] = sums
            self.counts.add_zeros(transfers, store)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Copies that are under way use the memory of stores and buffers.
        with suppress(Exception) if error is not None else nullcontext():
            self._loading.wait()
            self._written.wait()
            for sums in self._sums.values():
                sums.finish()
        self._rows.clear()
        self._windows.clear()
        self._sums.clear()
        self._copies.release()
        if self._trace is not None:
            self._trace.end()
        count_bytes(CHUNK, self.counts.to_device + self.counts.from_device)
        for store in self._stores():
            if store.allocator is not None:  # one for all stores of a graph
                store.allocator.moved += self.counts
                break

    def __iter__(self) -> Iterator[PassChunk]:
        with self._progress() as progress:
            for chunk in self._chunks():
                with profile_range(CHUNK):
                    yield chunk
                progress.step()

    def _chunks(self) -> Iterator[PassChunk]:
        windows = [window for window in self._loading_windows() if not window.in_place]
        loads_block = any(window.store.waits_on_host for window in windows)
        queue = copy_queue(self._device, "load", blocks=loads_block)
        for batch, index in enumerate(self._order):
            # Where all rows are read in place, streams and events would only take the host's time.
            if batch == 0 and windows:
                self._start_loading(queue, 0, loads_block)
            self._loading.wait()
            if loads_block:
                self._assemble(batch)
            for sums in self._sums.values():
                sums.keep(batch)
            if batch + 1 < len(self._order) and windows:
                self._start_loading(queue, batch + 1, loads_block)
            chunk = PassChunk(self, batch, index)
            if self._trace is not None:
                edges = sum(csc.edge_chunks.sizes[index] for csc in self._structures.values())
                self._trace.visit(chunk.stop - chunk.start, edges)
            yield chunk
            for sums in self._sums.values():
                sums.flush(batch)
            self._count(batch)

    def _find_trace(self) -> Any:
        """Notes in the graph's trace, if there is one, that the pass begins; returns the trace."""
        allocators = (store.allocator for store in self._stores() if store.allocator is not None)
        trace = next((a.trace for a in allocators), None)
        if trace is not None:
            layout, parent = self.chunks.row_layout, self.chunks.row_layout.parent
            trace.begin(
                layout.size,
                layout.size if parent is None else parent.size,
                sum(csc.edge_layout.size for csc in self._structures.values()),
                self._reads,
                [store for store, _ in self._sources],
                self._writes,
                [store for store, _ in self._gradients],
            )
        return trace

    def _progress(self) -> PassProgress:
        num_bytes = sum(
            store.moved_bytes(0, store.row_layout.local_count) for store in self._stores()
        )
        count, rank = len(self._order), self.chunks.row_layout.group.rank
        return PassProgress(count, num_bytes, self.counts, self._device, rank)

    def _stores(self) -> Iterator[RowStore]:
        """All stores that the pass reads or writes."""
        yield from self._reads
        yield from self._writes
        yield from (store for store, _ in (*self._sources, *self._gradients))

    def _start_loading(self, queue: CopyQueue, batch: int, loads_block: bool) -> None:
        """Starts to load a batch, beside the work on the batch before."""

        def load() -> None:
            for rows in self._rows.values():
                rows.load(batch, self._order[batch])
            for window in self._windows.values():
                window.load(batch)
            for sums in self._sums.values():
                sums.load(batch)
            # Exchanges between ranks are started by one thread, in the same order on all ranks.
            if not loads_block:
                self._assemble(batch)

        self._loading.add(queue.start(load), None)

    def _assemble(self, batch: int) -> None:
        for window in self._windows.values():
            window.assemble(batch)

    def _loading_windows(self) -> list[RowWindow | SourceWindow | GradientWindow]:
        return [*self._rows.values(), *self._windows.values(), *self._sums.values()]

    def _queue(self, name: str, store: RowStore) -> CopyQueue:
        return copy_queue(self._device, name, blocks=store.waits_on_host)

    def _write(self, store: RowStore, start: int, rows: Tensor) -> None:
        buffers: list[RowWindow | SourceWindow] = [*self._rows.values(), *self._windows.values()]
        if any(window.has_memory_of(rows) for window in buffers):
            rows = rows.clone()  # The buffer takes other rows before these are written.
        if store.in_place:
            store.write(start, rows)
            return
        wait = self._queue("write", store).start(lambda: store.write(start, rows))
        self._written.add(wait, rows)

    def _count(self, batch: int) -> None:
        start, stop = self.chunks.range(self._order[batch])
        for rows in self._rows.values():
            self.counts.to_device += rows.store.moved_bytes(start, stop)
        for store in self._writes:
            self.counts.from_device += store.moved_bytes(start, stop)
        for window in self._windows.values():
            self.counts.add_sources(window.transfers, window.store, batch)
        for sums in self._sums.values():
            self.counts.add_gradients(sums.transfers, sums.store, batch)


class PassChunk:
    """One chunk of a pass. Its rows are valid until the next chunk is asked for."""

    def __init__(self, chunk_pass: ChunkPass, batch: int, index: int) -> None:
        self._pass = chunk_pass
        self._batch = batch
        self.index = index
        """Number of this rank's chunk."""
        self.chunks = chunk_pass.chunks
        """Of the rows that the pass visits."""
        self.start, self.stop = self.chunks.range(index)
        """First local row of the chunk, and the local row after its last one."""
        self._structures: dict[int, Csc] = {}

    def rows(self, store: RowStore) -> Tensor:
        """Returns the chunk's rows of a store, [rows, *features], which must not be changed.

        Args:
            store: one of `reads`.
        """
        if store not in self._pass._reads:
            raise ValueError(f"{store} is not one of the pass's reads")
        return self._pass._rows[id(store)].rows(self._batch, self.index)

    def sources(self, store: RowStore, csc: ChunkedCsc | None = None) -> tuple[Tensor, Csc]:
        """Returns rows of sources, and the edges from them to the chunk's rows.

        The rows are those of all sources of the chunk and perhaps others, in an order of their own,
        the same for all stores of the structure. On one rank with rows on the device they are the
        whole store, without a copy, unless gradients are added to rows of this structure's sources.

        Args:
            store: one of `sources`.
            csc: its structure; None: the only one that the store has in the pass.

        Returns:
            [source rows, *features], not to be changed, and the structure with these rows as
            sources; edge tensors are the rows of the chunk's edges.
        """
        store, csc = _find(self._pass._sources, "sources", store, csc)
        if self._pass._is_whole[id(csc)]:
            return self._pass._copies.find(store).memory, self.csc(csc)
        window = self._pass._windows[id(store), id(csc)]
        return window.rows(self._batch), self.csc(csc)

    def csc(self, csc: ChunkedCsc) -> Csc:
        """Returns the edges to the chunk's rows, whose sources are numbered as by :meth:`sources`.

        Args:
            csc: one of the structures of the pass.
        """
        structure = self._structures.get(id(csc))
        if structure is None:
            if self._pass._is_whole[id(csc)]:
                structure = csc.whole(self.index)
            else:
                structure = csc.of_window(self.index, self.source_rows(csc))
            self._structures[id(csc)] = structure
        return structure

    def source_rows(self, csc: ChunkedCsc) -> Tensor:
        """Returns the extended rows of the rows that :meth:`sources` returns, [source rows]."""
        if self._pass._is_whole[id(csc)]:
            plan = csc.resident.plan
            return torch.arange(plan.num_extended, device=plan.halo_rows.device)
        return csc.transfers(self._pass._leader).rows(self._batch)

    def count_gathered(self, store: RowStore, rows: int) -> None:
        """Counts rows that the work on the chunk has gathered from a store itself."""
        if self._pass._trace is not None:
            self._pass._trace.read(store)
        self._pass.counts.to_device += rows * store.row_bytes * (not store.in_place)

    def write(self, store: RowStore, rows: Tensor) -> None:
        """Writes the chunk's rows to a store.

        Args:
            store: one of `writes`.
            rows: [rows, *features], which must not be changed until the pass has ended.
        """
        if store not in self._pass._writes:
            raise ValueError(f"{store} is not one of the pass's writes")
        expected = (self.stop - self.start, *store.features)
        if tuple(rows.shape) != expected or rows.dtype != store.dtype:
            raise ValueError(
                f"rows must be {list(expected)} {store.dtype}, got {list(rows.shape)} {rows.dtype}"
            )
        self._pass._write(store, self.start, rows.detach())

    def add_source_gradients(
        self, store: RowStore, rows: Tensor, csc: ChunkedCsc | None = None
    ) -> None:
        """Adds to the gradients of source rows.

        The gradients of a row are added in the same order in every run.

        Args:
            store: one of `gradients`.
            rows: [source rows, *features] gradients of the rows that :meth:`sources` returns.
            csc: its structure; None: the only one that the store has in the pass.
        """
        store, csc = _find(self._pass._gradients, "gradients", store, csc)
        expected = (len(self.source_rows(csc)), *store.features)
        if tuple(rows.shape) != expected:
            raise ValueError(f"rows must be {list(expected)}, got {list(rows.shape)}")
        self._pass._sums[id(store), id(csc)].add(self._batch, rows.detach())


def _find(
    operands: Sequence[Operand], name: str, store: RowStore, csc: ChunkedCsc | None
) -> Operand:
    matches = [pair for pair in operands if pair[0] is store and csc in (None, pair[1])]
    if not matches:
        raise ValueError(f"{store} is not one of the pass's {name}")
    if len(matches) > 1:
        raise ValueError(f"csc must say which of the {len(matches)} structures of {store} is meant")
    return matches[0]
