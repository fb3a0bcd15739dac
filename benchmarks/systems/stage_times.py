"""When the sums and the copies of each stage of an exchange begin and end."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Pending, Transport
from peergraph.fullgraph.structure.staged_sum import SourceBlocks

# About 5 ms.
_HOLD_CYCLES = 10_000_000


class StageTimes:
    """Notes times while it is entered. On a GPU they are those of its streams.

    Args:
        transport: whose exchanges are noted.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._device = transport.group.device
        self._marks: list[tuple[str, int, Any, Any]] = []
        self._first: Any = None
        self._copies = 0

    def __enter__(self) -> StageTimes:
        start = self._transport.start
        # Restored at the exit, also where it was replaced before.
        self._before = self._transport.__dict__.get("start")

        def start_and_mark(*arguments: Any) -> Pending:
            self._copies += 1
            begin = self._mark_copies(after_sums=True)
            pending = start(*arguments)
            return _Marked(self, self._copies, begin, pending)

        self._transport.start = start_and_mark  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del self._transport.start  # type: ignore[method-assign]
        else:
            self._transport.start = self._before  # type: ignore[method-assign]

    def begin(self) -> None:
        """Times count from here. A GPU is held back first, until its work is queued."""
        if self._device.type == "cuda":
            torch.cuda._sleep(_HOLD_CYCLES)
        self._first = self.mark()

    def mark(self) -> Any:
        """A time of the current stream."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, what: str, stage: int, begin: Any, end: Any) -> None:
        self._marks.append((what, stage, begin, end))

    def spans(self) -> list[list[object]]:
        """What, stage, begin and end in milliseconds. Synchronises."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [
            [what, stage, self._since(begin), self._since(end)]
            for what, stage, begin, end in self._marks
        ]

    def _since(self, mark: Any) -> float:
        if self._device.type == "cuda":
            return round(float(self._first.elapsed_time(mark)), 4)
        return round((mark - self._first) * 1e3, 4)

    def _mark_copies(self, after_sums: bool = False) -> Any:
        """A time of the stream that receives; of the current one where there is no such stream."""
        memory = getattr(self._transport, "_memory", None)
        if memory is None or self._device.type != "cuda":
            return self.mark()
        stream = memory.receiving._stream
        if after_sums:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            return self.mark()


class _Marked:
    """An exchange whose end is noted where it is queued, or where a thread waits for it."""

    def __init__(self, times: StageTimes, stage: int, begin: Any, pending: Pending) -> None:
        self._times, self._stage, self._begin, self._pending = times, stage, begin, pending
        self._end: Any = None
        if times._device.type == "cuda":
            self._end = times._mark_copies()

    def wait(self) -> None:
        self._pending.wait()
        end = self._end or self._times.mark()
        self._times.add("copy", self._stage, self._begin, end)


def staged_spmm(blocks: SourceBlocks, x: Tensor, times: StageTimes | None = None) -> Tensor:
    """Sums the rows of sources, as :func:`staged_sum` does; notes when each stage is summed."""
    out: Tensor | None = None
    for stage, (source, rows) in enumerate(blocks.stages.gather(x)):
        begin = None if times is None else times.mark()
        block = blocks.blocks[source]
        if out is None:
            out = block.sum_messages(rows, None, "copy_u")
        else:
            block.add_messages(out, rows, None, "copy_u")
        if times is not None:
            times.add("sum", stage, begin, times.mark())
    assert out is not None
    return out
