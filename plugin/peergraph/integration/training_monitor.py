"""`monitor`: shows what a training run reads from each memory, and what it waits for."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from peergraph.memory.device.capture_mode import is_capturing
from peergraph.number_arguments import check_seconds
from peergraph.printing import format_bytes
from peergraph.profiling import CHUNK, observe
from peergraph.store import Store
from peergraph.store.report.open_stores import open_stores
from peergraph.store.report.read_recorder import ReadRecorder

_TIERS = ("replicated", "sharded", "host", "disk")
_LEAST_SHARE = 0.005
_running: Monitor | None = None


@dataclass
class _Counts:
    """Counts and times since the monitor began."""

    seconds: float = 0.0
    batches: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    """Rows and neighbour lists read, by tier."""
    moved: Counter[str] = field(default_factory=Counter)
    """Bytes read, by the memory that they come from."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds that the host has spent in each range."""

    def since(self, before: _Counts) -> _Counts:
        """Returns the difference to earlier counts."""
        return _Counts(
            self.seconds - before.seconds,
            self.batches - before.batches,
            self.rows - before.rows,
            self.moved - before.moved,
            {name: spent - before.times.get(name, 0) for name, spent in self.times.items()},
        )

    def line(self) -> str:
        """Formats the counts as one line."""
        parts = [f"{self.batches / self.seconds:.1f} batches/s"] if self.batches else []
        total = sum(self.rows.values())
        if total:
            shares = (f"{100 * self.rows[t] / total:.0f} % {t}" for t in _TIERS if self.rows[t])
            parts.append(f"rows {', '.join(shares)}")
        if self.moved:
            rates = (
                f"{name} {format_bytes(int(count / self.seconds))}/s"
                for name, count in sorted((+self.moved).items())
            )
            parts.append(f"read from {', '.join(rates)}")
        times = [(spent / self.seconds, name) for name, spent in self.times.items()]
        named = [
            f"{name.removeprefix('peergraph::')} {100 * share:.0f} %"
            for share, name in sorted(times, reverse=True)
            if share >= _LEAST_SHARE
        ]
        parts.append(f"time in {', '.join(named)}" if named else "no time in Peergraph")
        return " | ".join(parts)


class Monitor:
    """Counts the reads and the ranges of this process; created by :func:`monitor`.

    ``str(monitor)`` is one line on everything since the monitor began, such as for a progress bar
    (``bar.set_postfix_str(monitor)``). On a GPU it waits for the device.
    """

    def __init__(self, every: float | None) -> None:
        self._every = every
        self._shows = every is not None and os.environ.get("RANK", "0") == "0"
        self._process = os.getpid()
        self._begin = time.perf_counter()
        self._lock = threading.Lock()
        self._times: dict[str, float] = {}
        self._bytes: Counter[str] = Counter()
        self._shown = _Counts()
        self._measured = ExitStack()
        self._recorders: dict[int, tuple[Store, ReadRecorder]] = {}
        self._is_reporting = False

    def add_time(self, name: str, seconds: float) -> None:
        """Adds the time of a range. The main thread writes a line if one is due."""
        if os.getpid() != self._process:  # a DataLoader worker: nobody reads its counts
            return
        with self._lock:
            self._times[name] = self._times.get(name, 0.0) + seconds
        if self._is_reporting or threading.current_thread() is not threading.main_thread():
            return
        if any(id(store) not in self._recorders for store in list(open_stores)):
            self._measure_stores()
        due = self._shown.seconds + (self._every or 0)
        if self._shows and time.perf_counter() - self._begin >= due:
            self._show()

    def add_bytes(self, name: str, num_bytes: int) -> None:
        """Adds the bytes of an exchange or of chunks."""
        with self._lock:
            self._bytes[name] += num_bytes

    def stop(self) -> None:
        """Ends counting. Synchronises with the stores' GPUs. Idempotent."""
        global _running
        if _running is self:
            observe(None)
            _running = None
            if self._shows and self._counts().seconds > self._shown.seconds:
                self._write(f"{self} (in all)")
            self._measured.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __str__(self) -> str:
        return self._counts().line()

    def _measure_stores(self) -> None:
        """Begins to count the reads of new stores."""
        stores: list[Store] = list(open_stores)
        for store in stores:
            if id(store) in self._recorders or store.closed or store.measuring is not None:
                continue
            self._recorders[id(store)] = store, self._measured.enter_context(store.measure())

    def _show(self) -> None:
        """Writes a line on the time since the last line, unless a CUDA graph is being captured."""
        if any(is_capturing(store.device) for store, _ in self._recorders.values()):
            return
        self._is_reporting = True  # Reading the counters may itself enter ranges.
        try:
            now = self._counts()
            self._write(now.since(self._shown).line())
            self._shown = now
        finally:
            self._is_reporting = False

    def _write(self, line: str) -> None:
        from tqdm import tqdm

        # tqdm writes the line above progress bars.
        tqdm.write(f"peergraph {time.perf_counter() - self._begin:.0f} s | {line}", sys.stderr)

    def _counts(self) -> _Counts:
        counts = _Counts(time.perf_counter() - self._begin)
        with self._lock:
            counts.times.update(self._times)
            for name, moved in self._bytes.items():
                counts.moved["host, in chunks" if name == CHUNK else "other ranks"] += moved
        for store, recorder in self._recorders.values():
            result = recorder.result()
            counts.batches += result.batches[0] if result.items else 0
            for item in result.items:
                sources = _sources(store.plan.world_size, result.ranks[0])
                for (tier, memory), reads, moved in zip(
                    sources, item.reads[0], item.read_bytes[0], strict=False
                ):
                    counts.rows[tier] += reads
                    counts.moved[memory] += moved
        return counts


def _sources(world_size: int, rank: int) -> list[tuple[str, str]]:
    """Returns the tier and the memory of each source that a store's counters distinguish."""
    local = "own memory"
    ranks = [local if other == rank else f"rank {other}" for other in range(world_size)]
    return [
        ("replicated", local),
        *(("sharded", memory) for memory in ranks),
        ("host", "host"),
        ("disk", "disk"),
    ]


def monitor(every: float | None = 10.0) -> Monitor:
    """Shows what this process reads from each memory, and what it waits for, while it runs::

        peergraph.monitor()                    # anywhere before the training; one line
        with peergraph.monitor(every=60): ...  # or for a part of it

    Every `every` seconds it writes a line to stderr: mini-batches per second; the share of rows and
    neighbour lists that were read from each tier; bytes per second from this rank's memory, each
    other rank, the host, and the exchange of full graphs; and the share of the host's time in each
    range of :data:`peergraph.profiling.NAMES`, including ``wait_batch`` and ``exchange``. Ranges of
    threads that prefetch batches count too, so the shares may add up to more than 100 %. On a GPU
    a range is the time in which the host launches work and waits for results, not the time of the
    kernels.

    Counting adds small kernels after the reads (:meth:`peergraph.store.Store.measure`), and each
    line waits for the GPU once. Under torchrun rank 0 writes. Reads of DataLoader workers, replays
    of CUDA graphs and users' kernels are not counted. Not collective. ``peergraph monitor
    script.py`` does the same for an unchanged script.

    Args:
        every: seconds between two lines; None: no lines, for ``str(monitor)`` alone.

    Returns:
        The monitor. It ends with its context, with :meth:`Monitor.stop`, or with the process. Until
        then :meth:`peergraph.store.Store.measure` cannot measure its stores.

    Raises:
        ValueError, TypeError: `every` is no positive number, or more than a million seconds.
        RuntimeError: another monitor is running.
    """
    global _running
    check_seconds("every", every)
    if _running is not None:
        raise RuntimeError("a monitor runs already: stop it first")
    _running = Monitor(every)
    observe(_running)
    return _running
