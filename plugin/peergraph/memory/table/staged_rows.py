"""Lets CPU threads read rows for a GPU, and copies these rows through pinned memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import peergraph._C as _C
from peergraph.memory.device.launching import Launch, launch_on, threads_of_rank
from peergraph.memory.device.pinned_pipeline import pinned_pipeline
from peergraph.memory.table.id_list import as_wide_as_rows, id_list
from peergraph.memory.table.table_view import dense_view

# There are many threads, because a thread that reads a disk waits most of the time.
_DISK_THREADS = 32


def disk_launch() -> Launch:
    """Returns the launch arguments with which CPU threads read and write a disk."""
    threads = max(_DISK_THREADS, torch.get_num_threads())
    return launch_on(torch.device("cpu"), num_threads=threads)


def staging_launch(world_size: int) -> Launch:
    """Returns the launch arguments with which CPU threads read host memory for a GPU."""
    return launch_on(torch.device("cpu"), num_threads=threads_of_rank(world_size))


class StagedRows:
    """The last rows of a table, which CPU threads read and write for a GPU.

    Args:
        view: a view of these rows only, for the CPU.
        first: the internal row of the first of them.
        rows: the number of rows of the whole table.
        row_bytes: the bytes of a row.
        order: [rows] the internal row of each user id; None: they are equal.
        device: the GPU.
        launch: the launch arguments for the CPU threads.
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
        """Returns an event that passes once the current stream has finished its work so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def gather(
        self,
        ids: torch.Tensor,
        out: torch.Tensor,
        ready: torch.cuda.Event,
        out_index: torch.Tensor | None = None,
    ) -> None:
        """Writes to `out` those of the rows `ids` that CPU threads read. Waits for `ready`.

        Args:
            ids: user ids on the GPU. Nothing is written for ids out of range and for other rows.
            out: the result, contiguous on the GPU; written in the current stream.
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
        rows = out.numel() * out.element_size() // self._row_bytes
        result = dense_view(out, rows, self._row_bytes)
        _C.scatter(result, id_list(positions), staged, launch_on(self._device))

    def scatter(self, ids: torch.Tensor, values: torch.Tensor, ready: torch.cuda.Event) -> None:
        """Overwrites those of the rows `ids` that CPU threads write. They are written on return.

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
        """Finds the ids of rows that CPU threads read. Waits for the current stream.

        Returns:
            The positions of these ids in `ids`, on the GPU, and their rows, on the CPU. Rows are
            counted from the first row that CPU threads read, and ascend.
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
