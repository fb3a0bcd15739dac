"""One iteration of a loader, in which all ranks exchange rows batch by batch."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from typing_extensions import Self

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory.device.capture_mode import use_thread_local_capture_mode
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from peergraph.memory.distributed.exchange_round import ExchangeRound, Layout, wanted_rows
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.remote_rows import RemoteRows, reading_rows
from peergraph.memory.distributed.round_header import RoundHeader
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.table import Table
from peergraph.profiling import EXCHANGE, profiled

_CPU = torch.device("cpu")
_HEADER = 0


class FetchedRows:
    """The rows of other machines for one batch of this rank."""

    def __init__(
        self, rows: dict[RowSet, RemoteRows], complete: Callable[[], None], device: torch.device
    ) -> None:
        self._rows = rows
        self._complete = complete
        self._device = device
        self._ready: torch.cuda.Event | None = None

    @property
    def is_queued(self) -> bool:
        """Whether all transfers are queued on a GPU's stream; then :meth:`wait` returns at once."""
        return self._ready is not None

    @profiled(EXCHANGE)
    def wait(self) -> None:
        """Waits until the rows have arrived. Called by the thread that iterates.

        If NCCL transfers the rows, the current stream waits, and the host does not.
        """
        self._complete()
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self.mark_ready())
        for rows in self._rows.values():
            for tensor in rows.tensors():
                tensor.record_stream(stream)

    def mark_ready(self) -> torch.cuda.Event:
        """Returns the event after which the rows are on the GPU. The first call records it in the
        current stream.
        """
        if self._ready is None:
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record(torch.cuda.current_stream(self._device))
        return self._ready

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Waits for the rows; returns a context in which this thread's gathers can read them."""
        self.wait()
        with reading_rows(self._rows):
            yield


class ExchangeSession:
    """One iteration of a loader. Every rank of every machine opens the session, and finishes it.

    :meth:`fetch` is collective over the ranks that have a batch. When a rank has finished, a thread
    of it serves the other ranks until all have finished. As a context manager it finishes at the
    end.
    """

    def __init__(
        self,
        loader: str,
        layout: Layout,
        network: ExchangeNetwork,
        traffic: TrafficCounter,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """
        Args:
            loader: the loader and the tables that it reads, as text; the same on all ranks.
            stream: the stream in which this rank sends rows to others when it has finished; None
                without a GPU.
        """
        self.loader = loader
        self.network = network
        self.finished = False
        """Whether this rank has no more batches."""
        self._stream = stream
        self._layout = layout
        self._traffic = traffic
        self._hash = int.from_bytes(
            hashlib.blake2b(loader.encode(), digest_size=7).digest(), "little"
        )
        self._rounds = 0
        self._pending: ExchangeRound | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @profiled(EXCHANGE)
    def fetch(self, requests: Sequence[tuple[Table, torch.Tensor]]) -> FetchedRows:
        """Requests the rows of this rank's next batch from other machines, and sends theirs.

        Collective over the ranks that have a batch. Synchronises with a GPU for the numbers of
        rows, but not for the transfer of the rows.

        Args:
            requests: pairs of a table and the users' ids that the batch will gather from it. Tables
                that are not split over machines are ignored.

        Raises:
            IndexError: an id on the CPU is out of range; nothing has been exchanged.
            PeerLostError: a rank is lost, or did not join in time.
            CollectiveMismatchError: a rank iterates another loader.
            RuntimeError: this rank has finished.
        """
        if self.finished:
            raise RuntimeError(f"{self.loader}: this iteration has been closed")
        group = self.network.group
        split = [(t, ids) for t, ids in requests if isinstance(t, DistributedTable)]
        wanted = wanted_rows(split, self._layout, group.world_size)
        with self._guard():
            self._complete()
            counts = {
                rows: (w.mask, [positions.numel() for positions in w.by_rank])
                for rows, w in wanted.items()
            }
            headers = self._exchange_headers(False, counts)
            self._pending = pending = self._run(headers, wanted)
        self._traffic.add(batches=1)

        def complete() -> None:
            # The serving thread may be completing it at the same time.
            if not pending.is_complete:
                with self._guard():
                    pending.complete()

        fetched = FetchedRows({s: w.rows for s, w in wanted.items()}, complete, group.device)
        if pending.is_complete and group.device.type == "cuda":
            fetched.mark_ready()
        return fetched

    def finish(self) -> None:
        """Declares that this rank has no more batches. Returns at once; a thread serves the other
        ranks. Idempotent.
        """
        if self.finished:
            return
        self.finished = True
        if self._error is None:
            self._thread = threading.Thread(
                target=self._answer, name="peergraph exchange", daemon=True
            )
            self._thread.start()

    def join(self) -> None:
        """Waits until all ranks have finished. If an error has ended the exchange, raises it."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    @property
    def broken(self) -> bool:
        """Whether an error has ended the exchange."""
        return self._error is not None

    def _answer(self) -> None:
        try:
            with self._guard(), self._on_stream():
                self._complete()
                while True:
                    headers = self._exchange_headers(True, {})
                    if all(header.finished for header in headers.values()):
                        return
                    self._pending = self._run(headers, {})
                    self._complete()
        except Exception as error:  # `join` raises it.
            self._error = error

    def _on_stream(self) -> AbstractContextManager[Any]:
        """Prepares a new thread for the stream, and returns a context in which it uses the stream.

        A new thread uses GPU 0. Its calls must not invalidate the capture of a CUDA graph.
        """
        if self._stream is None:
            return nullcontext()
        torch.cuda.set_device(self._stream.device)
        use_thread_local_capture_mode()
        return torch.cuda.stream(self._stream)

    def _complete(self) -> None:
        if self._pending is not None:
            self._pending.complete()
        self._pending = None

    def _run(self, headers: dict[int, RoundHeader], wanted: Any) -> ExchangeRound:
        network = self.network
        anyone_done = any(header.finished for header in headers.values())
        exchange_round = ExchangeRound(
            self._layout,
            network,
            self._traffic,
            self.loader,
            # A rank that has finished serves the others in a thread, which must not launch NCCL's
            # kernels while the main thread may do so: NCCL needs the same order on all ranks.
            by_nccl=network.has_nccl and not anyone_done,
        )
        local_ranks = network.group.machines.local_ranks
        local = {rank: dict(headers[rank].wanted) for rank in headers if rank in local_ranks}
        exchange_round.begin(wanted, local)
        return exchange_round

    def _exchange_headers(
        self, finished: bool, counts: dict[RowSet, tuple[int, list[int]]]
    ) -> dict[int, RoundHeader]:
        """Sends this rank's headers; returns the header of every rank.

        Args:
            finished: whether this rank has no more batches.
            counts: for each row set the tables as bits, and the number of rows that each rank of
                this machine fetches for this rank.
        """
        network, sets = self.network, self._layout.sets
        machines = network.group.machines

        def header_for(rank: int) -> RoundHeader:
            wanted = {}
            for rows, (mask, by_rank) in counts.items():
                is_local = rank in machines.local_ranks
                count = by_rank[machines.local_ranks.index(rank)] if is_local else 0
                wanted[rows] = mask, count
            return RoundHeader(self._hash, self._rounds, finished, wanted)

        headers = {machines.rank: header_for(machines.rank)}
        others = [rank for rank in range(machines.world_size) if rank != machines.rank]
        messages = {rank: header_for(rank).to_message(sets) for rank in others}
        size = RoundHeader.num_bytes(sets)
        remote = machines.world_size - len(machines.local_ranks)
        self._traffic.add(bytes_sent=size * remote, bytes_received=size * remote)
        purpose = f"batch {self._rounds} of {self.loader}"
        sizes = dict.fromkeys(others, size)
        for rank, message in network.transfer(messages, sizes, _HEADER, purpose).wait(_CPU).items():
            headers[rank] = RoundHeader.from_message(message, sets)
        headers = dict(sorted(headers.items()))
        self._check(headers)
        self._rounds += 1
        return headers

    def _check(self, headers: dict[int, RoundHeader]) -> None:
        machines, expected = self.network.group.machines, (self._hash, self._rounds)
        others = [r for r, h in headers.items() if (h.loader_hash, h.round) != expected]
        if others:
            names = ", ".join(
                f"rank {r} of {machines.name(machines.machine_of(r))}" for r in others
            )
            raise CollectiveMismatchError(
                f"this rank ({machines.rank} of {machines.name(machines.index)}) iterates "
                f'{self.loader}, and another loader is iterated by {names}. With machines="shard" '
                "all ranks of all machines iterate the same loaders in the same order"
            )

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Returns a context for a round. If the round fails, the session ends, so that other ranks
        that wait for this rank get an error.
        """
        if self._error is not None:
            raise RuntimeError(f"the exchange of rows has ended: {self._error}")
        try:
            yield
        except Exception as error:
            self._error = error
            self.network.close()
            raise
        except BaseException as error:
            self._error = PeerLostError(f"{type(error).__name__} ended the exchange of rows")
            self.network.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()
