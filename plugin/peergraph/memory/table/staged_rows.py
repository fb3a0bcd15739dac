"""Rows that a GPU does not read itself: CPU threads bring them, through pinned memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch, launch_on
from peergraph.memory.device.pinned_buffers import pinned_buffers
from peergraph.memory.table.id_list import id_list, wide_enough
from peergraph.memory.table.table_view import dense_view

# Most of the time a thread that reads a disk waits for it.
_DISK_THREADS = 32


def disk_launch() -> Launch:
    """The CPU, reading or writing a disk."""
    launch = launch_on(torch.device("cpu"))
    return launch._replace(num_threads=max(_DISK_THREADS, launch.num_threads))


def staging_launch(world_size: int) -> Launch:
    """The CPU, reading memory for a GPU beside so many ranks: torchrun leaves torch one thread."""
    launch = launch_on(torch.device("cpu"))
    share = len(os.sched_getaffinity(0)) // world_size
    return launch._replace(num_threads=max(share, launch.num_threads))


class AwayRows:
    """The last rows of a table, which its GPU leaves to the CPU.

    Args:
        view: of these rows alone, for the CPU.
        first: the first of them in the table.
        rows: of the table.
        row_bytes: of a row.
        order: [rows] user id -> row, None where they are the same.
        device: the GPU.
        launch: how the CPU works.
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
        """Marks that what is queued by now has been done: ids, and values to write."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def gather(
        self,
        ids: torch.Tensor,
        out: _C.TableView,
        ready: torch.cuda.Event,
        at: torch.Tensor | None = None,
    ) -> None:
        """Writes those of the rows `ids` that are away. Waits for `ready`, not for later work.

        Args:
            ids: users' ids on the GPU; those out of range are left alone.
            out: the result's rows, written in the current stream.
            ready: when the ids were there.
            at: int64 on the GPU, where in the result each id's row belongs; None: at its own place.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            places, local = self._find(ids)
            if not local.numel():
                return
            if at is not None:
                places = at[places]
                at.record_stream(self._stream)
            staged = self._staged(local)
            device, stream, _ = launch_on(self._device, self._stream)
            for part, buffer in self._pieces(local):
                _C.stage(
                    self._view,
                    id_list(local[part]),
                    buffer.data_ptr(),
                    staged[part].data_ptr(),
                    device,
                    stream,
                    self._launch.num_threads,
                )
        current.wait_stream(self._stream)
        for used in (places, staged):
            used.record_stream(current)
        _C.scatter(out, id_list(places), staged.data_ptr(), *launch_on(self._device))

    def scatter(self, ids: torch.Tensor, values: int, ready: torch.cuda.Event) -> None:
        """Overwrites those of the rows `ids` that are away; they are written when it returns.

        Args:
            ids: as for :meth:`gather`.
            values: address of a row for each id.
            ready: when ids and values were there.
        """
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            places, local = self._find(ids)
            if not local.numel():
                return
            staged = self._staged(local)
            source = dense_view(values, ids.numel(), self._row_bytes)
            launch = launch_on(self._device)
            _C.gather(source, id_list(places), staged.data_ptr(), *launch)
            for part, buffer in self._pieces(local):
                buffer.copy_(staged[part])
                ids_here = id_list(local[part])
                _C.scatter(self._view, ids_here, buffer.data_ptr(), *self._launch)

    def _find(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of `ids` are away: their places on the GPU and their rows here, rising, on the CPU.

        Waits for the current stream.
        """
        flat = wide_enough(ids.flatten(), self._rows)
        rows = flat.clamp(0, self._rows - 1)
        rows = rows if self._order is None else self._order[rows]
        away = (rows >= self._first) & (flat >= 0) & (flat < self._rows)
        places = away.nonzero().squeeze(1)
        local, by_row = (rows[places].long() - self._first).sort()
        ids.record_stream(self._stream)
        return places[by_row], local.cpu()

    def _staged(self, local: torch.Tensor) -> torch.Tensor:
        """Room on the GPU for these rows."""
        shape = (local.numel(), self._row_bytes)
        return torch.empty(shape, dtype=torch.uint8, device=self._device)

    def _pieces(self, local: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        buffers = pinned_buffers(self._device)
        return buffers.pieces(local.numel(), self._row_bytes, self._stream)
