"""Gathers rows for a GPU from a table with rows in host memory or on disk."""

from __future__ import annotations

from typing import NamedTuple

import torch

import peergraph._C as _C
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import launch_on, most_blocks
from peergraph.memory.table.id_list import id_list, sort_by_row
from peergraph.memory.table.staged_rows import StagedRows
from peergraph.memory.table.tiers import Tiers

# For fewer ids, sorting the ids or using CPU threads costs more time than it saves.
_MANY_IDS = 4096


class Staging(NamedTuple):
    """Defines which host rows CPU threads read for a GPU."""

    share: float
    """The share of host rows that the threads read. A kernel reads the others at the same time."""
    view: _C.TableView
    """The table without its host rows, for the kernel."""
    rows: StagedRows
    """The rows in host memory and on disk, for the threads."""


class HostGather:
    """Gathers rows of which some are in host memory or on disk.

    A GPU reads pinned host memory at the link's speed if the addresses ascend. With random
    addresses it waits for address translations and reaches half of that speed or less. Large lists
    of ids are therefore sorted by row. CPU threads read a share of the host rows, or all of them,
    if measurements have shown that this is faster. CPU threads always read the rows on disk.

    Args:
        tiers: rows per tier.
        row_bytes: bytes of a row.
        device: the GPU.
        order: [rows] the internal row of each user id; None: they are equal.
        view: all rows that kernels can read.
        on_disk: the rows on disk; None if there are none.
        staging: how CPU threads read host rows; None: kernels read all of them.
    """

    def __init__(
        self,
        tiers: Tiers,
        row_bytes: int,
        device: torch.device,
        order: torch.Tensor | None,
        view: _C.TableView,
        on_disk: StagedRows | None = None,
        staging: Staging | None = None,
    ) -> None:
        self._tiers = tiers
        self._row_bytes = row_bytes
        self._device = device
        self._order = order
        self._view = view
        self._on_disk = on_disk
        self._staging = staging

    def gather(self, ids: torch.Tensor, out: torch.Tensor, padded: bool = False) -> None:
        """Writes the rows `ids` to a tensor on the device.

        Args:
            ids: int32 or int64 on the device, contiguous.
            out: the result, contiguous.
            padded: an id of -1 gives a row of zeros.

        Raises NotImplementedError if rows are on disk and a CUDA graph is being captured.
        """
        many = ids.numel() >= _MANY_IDS
        # A CUDA graph cannot wait for CPU threads.
        staging = self._staging if many and not is_capturing(self._device) else None
        if staging is not None and staging.share < 1:
            self._gather_shared(ids, out, padded, staging)
            return
        view, staged = self._view, self._on_disk
        if staging is not None:
            view, staged = staging.view, staging.rows
        if staged is not None and is_capturing(self._device):
            raise NotImplementedError(
                f"a CUDA graph cannot gather from a table with rows on disk ({self._tiers})"
            )
        ready = None if staged is None else staged.ready()
        kernel_ids, out_index, host_begin = ids, None, None
        if many and staging is None and self._tiers.host > 0 and self._row_bytes > 0:
            kernel_ids, out_index, host_begin = self._sort(ids)
        listed = id_list(kernel_ids, out_index, host_begin, padded=padded, max_blocks=most_blocks())
        _C.gather(view, listed, out, launch_on(self._device))
        if staged is not None and ready is not None:
            staged.gather(ids, out, ready)

    def _gather_shared(
        self, ids: torch.Tensor, out: torch.Tensor, padded: bool, staging: Staging
    ) -> None:
        """Gathers rows: a kernel reads the first host rows while CPU threads read the last ones.

        The host waits until the GPU has computed the ids.
        """
        sorted_ids, out_index, host_begin = self._sort(ids)
        ready = staging.rows.ready()
        split = ids.numel() - round(staging.share * (ids.numel() - int(host_begin)))
        launch, blocks = launch_on(self._device), most_blocks()
        by_kernel = id_list(
            sorted_ids[:split], out_index[:split], host_begin, padded=padded, max_blocks=blocks
        )
        _C.gather(self._view, by_kernel, out, launch)
        # Sorting moves ids out of range to both ends. This call reports those among the last ids,
        # and writes zeros to the rows that the threads will write.
        by_threads = id_list(
            sorted_ids[split:], out_index[split:], padded=padded, max_blocks=blocks
        )
        _C.gather(staging.view, by_threads, out, launch)
        staging.rows.gather(sorted_ids[split:], out, ready, out_index[split:])

    def _sort(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first_host_row = self._tiers.replicated + self._tiers.sharded
        return sort_by_row(ids, self._tiers.rows, self._order, first_host_row)
