"""Rows that CPU threads read for a GPU and copy to it through pinned memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch, launch_on
from peergraph.memory.device.pinned_pipeline import pinned_pipeline
from peergraph.memory.table.id_list import as_wide_as_rows, id_list
from peergraph.memory.table.table_view import dense_view

# A thread that reads a disk waits for the disk most of the time.
_DISK_THREADS = 32


def disk_launch() -> Launch:
    """How CPU threads read or write a disk."""
    threads = max(_DISK_THREADS, torch.get_num_threads())
    return launch_on(torch.device("cpu"), num_threads=threads)


def staging_launch(world_size: int) -> Launch:
    """How CPU threads read memory for a GPU: this rank's share of the processors.

    torch's number of threads is no guide, since torchrun sets it to one.
    """
    share = len(os.sched_getaffinity(0)) // world_size
    return launch_on(torch.device("cpu"), num_threads=max(share, torch.get_num_threads()))


class StagedRows:
    """The last rows of a table, which CPU threads read and write for a GPU.

    Args:
        view: these rows alone, for the CPU.
        first: the internal row of the first of them.
        rows: the rows of the whole table.
        row_bytes: bytes of a row.
        order: [rows] user id -> internal row, None where they are the same.
        device: the GPU.
        launch: how the CPU threads run.
    """

    def __init__(
        self,
        view: _C.TableView,
        first: int,
        rows: int,
        row_bytes: int,
        order: torch.Tensor | None,
        device: torch.device,
        launch: Launch,
    ) -> None:
        self._launch = launch
        self._view = view
        self._first = first
        self._rows = rows
        self._row_bytes = row_bytes
        self._order = order
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def ready(self) -> torch.cuda.Event:
        """Returns an event after the work queued by now, which makes ids, and values to write."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def gather(
        self,
        ids: torch.Tensor,
        out: _C.TableView,
        ready: torch.cuda.Event,
        out_index: torch.Tensor | None = None,
    ) -> None:
        """Writes the staged rows among the rows `ids` to `out`. Waits for `ready` on the host.

        Args:
            ids: user ids on the GPU; ids out of range and of other rows write nothing.
            out: the result's rows, written in the current stream.
            ready: an event after which the ids are valid.
            out_index: int64 on the GPU; the row of id i becomes row out_index[i] of the result.
                None: row i.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            positions, local = self._find(ids)
            if not local.numel():
                return
            if out_index is not None:
                positions = out_index[positions]
                out_index.record_stream(self._stream)
            staged = self._allocate(local)
            launch = launch_on(self._device, self._stream, self._launch.num_threads)
            for part, buffer in self._pieces(local):
                _C.stage(
                    self._view,
                    id_list(local[part]),
                    buffer,
                    staged[part],
                    launch,
                )
        current.wait_stream(self._stream)
        for used in (positions, staged):
            used.record_stream(current)
        _C.scatter(out, id_list(positions), staged, launch_on(self._device))

    def scatter(self, ids: torch.Tensor, values: torch.Tensor, ready: torch.cuda.Event) -> None:
        """Overwrites the staged rows among the rows `ids`; they are written when this returns.

        Args:
            ids: as for :meth:`gather`.
            values: a row for each id, contiguous on the GPU.
            ready: an event after which ids and values are valid.
        """
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            positions, local = self._find(ids)
            if not local.numel():
                return
            staged = self._allocate(local)
            source = dense_view(values, ids.numel(), self._row_bytes)
            launch = launch_on(self._device)
            _C.gather(source, id_list(positions), staged, launch)
            for part, buffer in self._pieces(local):
                buffer.copy_(staged[part])
                ids_here = id_list(local[part])
                _C.scatter(self._view, ids_here, buffer, self._launch)

    def _find(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Finds the ids of staged rows. Waits for the current stream.

        Returns:
            Their positions in `ids`, on the GPU, and their rows, counted from the first staged row
            and ascending, on the CPU.
        """
        flat = as_wide_as_rows(ids.flatten(), self._rows)
        rows = flat.clamp(0, self._rows - 1)
        rows = rows if self._order is None else self._order[rows]
        is_staged = (rows >= self._first) & (flat >= 0) & (flat < self._rows)
        positions = is_staged.nonzero().squeeze(1)
        local, by_row = (rows[positions].long() - self._first).sort()
        ids.record_stream(self._stream)
        return positions[by_row], local.cpu()

    def _allocate(self, local: torch.Tensor) -> torch.Tensor:
        """Allocates memory for these rows on the GPU."""
        shape = (local.numel(), self._row_bytes)
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def _pieces(self, local: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        pipeline = pinned_pipeline(self._device)
        return pipeline.pieces(local.numel(), self._row_bytes, self._stream)
