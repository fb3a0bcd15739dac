"""A progress bar of a long pass over chunks: chunks, and bytes a second."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Any

import torch

from peergraph.fullgraph.offload.rows.transfer_counts import TransferCounts
from peergraph.printing import format_bytes

_SHOWN_FROM_BYTES = 1 << 30


class PassProgress:
    """Shows how far a pass is, on rank 0 and on a terminal, if it moves more than 1 GiB.

    The work of a GPU counts when it is done, not when it is queued; a pass with a bar waits for its
    last chunk.

    Args:
        chunks: of the pass.
        num_bytes: that the pass moves, about.
        counts: bytes that have been moved.
        device: of the rank.
        rank: of the group.
        show: whether to show the bar; None: as above.
    """

    def __init__(
        self,
        chunks: int,
        num_bytes: int,
        counts: TransferCounts,
        device: torch.device,
        rank: int,
        show: bool | None = None,
    ) -> None:
        if show is None:
            show = rank == 0 and num_bytes > _SHOWN_FROM_BYTES and sys.stderr.isatty()
        self._chunks, self._counts, self._device = chunks, counts, device
        self._show = show
        self._bar: Any = None
        self._queued: deque[tuple[torch.cuda.Event, int, int]] = deque()
        self._begun = 0.0

    def __enter__(self) -> PassProgress:
        if self._show:
            from tqdm import tqdm

            self._bar = tqdm(total=self._chunks, unit="chunk", desc="full graph", leave=False)
            self._begun = time.perf_counter()
        return self

    def step(self) -> None:
        """Notes that a chunk has been computed, or queued."""
        if self._bar is None:
            return
        moved = self._counts.to_device, self._counts.from_device
        if self._device.type != "cuda":
            self._advance(*moved)
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._queued.append((event, *moved))
        self._take(wait=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            if error is None:
                self._take(wait=True)
            self._bar.close()

    def _take(self, *, wait: bool) -> None:
        while self._queued:
            is_done = self._queued[0][0].query()  # type: ignore[no-untyped-call]
            if not (wait or is_done):
                return
            event, to_device, from_device = self._queued.popleft()
            event.synchronize()
            self._advance(to_device, from_device)

    def _advance(self, to_device: int, from_device: int) -> None:
        seconds = max(1e-9, time.perf_counter() - self._begun)
        rate = max(to_device, from_device) / seconds / 1e9
        moved = f"{format_bytes(to_device)} in, {format_bytes(from_device)} out"
        self._bar.set_postfix_str(f"{moved}, {rate:.1f} GB/s")
        self._bar.update()
