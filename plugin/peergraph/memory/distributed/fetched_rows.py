"""The rows of other machines that a rank gets in a round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from peergraph.memory.distributed.exchange_round import ExchangeRound
from peergraph.memory.distributed.remote_rows import reading_rows
from peergraph.memory.distributed.wanted_rows import Request
from peergraph.profiling import EXCHANGE, profiled


class FetchedRows:
    """The rows of other machines for the batches of this rank in a round.

    The session's thread exchanges the ids. The thread that iterates then calls
    :meth:`start_transfer`, and the thread that makes the batches :meth:`wait`.
    """

    def __init__(
        self,
        batches: Sequence[Sequence[Request]],
        guard: Callable[[], AbstractContextManager[Any]],
        completed: Callable[[FetchedRows], None],
        device: torch.device,
    ) -> None:
        """
        Args:
            batches: for each batch, pairs of a split table and the users' ids that the batch
                gathers from it.
            guard: returns a context for a part of the round; an error in it ends the session.
            completed: called with this object when nothing of the round is left to do on this rank.
            device: the device of the tables.
        """
        self.batches = batches
        self.planned: Future[ExchangeRound] = Future()
        """The round, once its ids have been exchanged."""
        self.request_errors: dict[int, Exception] = {}
        """The error of each batch with wrong ids, by the batch's position in the round; complete
        once the ids have been exchanged. Such a batch gets no rows. Whoever raises an error removes
        it here: otherwise the error's traceback and these rows would keep each other alive."""
        self.requested: torch.cuda.Event | None = None
        """After the work that makes the ids, on a GPU."""
        self._guard = guard
        self._completed = completed
        self._device = device
        self._ready: torch.cuda.Event | None = None
        # The streams for which the memory of the rows is kept.
        self._used_by: set[torch.cuda.Stream] = set()
        self._sending = threading.Lock()
        if device.type == "cuda":
            self.requested = torch.cuda.current_stream(device).record_event()

    @property
    def is_queued(self) -> bool:
        """Whether all transfers are queued on a GPU's stream; then :meth:`wait` returns at once."""
        return self._ready is not None

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the round is left to do on this rank."""
        return self.planned.done() and (
            self.planned.exception() is not None or self.planned.result().is_complete
        )

    @profiled(EXCHANGE)
    def start_transfer(self) -> ExchangeRound:
        """Waits until the ids have been exchanged, and begins to send and receive rows, in the
        current stream. On GPUs, the host waits for no rows. Idempotent. Returns the round.

        Raises:
            PeerLostError: a rank is lost, or did not join in time.
            CollectiveMismatchError: a rank iterates another loader.
        """
        with self._sending:
            exchange = self.planned.result()
            if not exchange.is_sent:
                with self._guard():
                    exchange.send()
                if exchange.is_complete and self._device.type == "cuda":
                    self._mark_ready()
        return exchange

    def send(self) -> None:
        """Does the same as :meth:`start_transfer`, and raises the error of the first batch with
        wrong ids: IndexError, TypeError or ValueError. The other ranks get their rows.
        """
        self.start_transfer()
        if self.request_errors:
            raise self.request_errors.pop(min(self.request_errors))

    def complete(self) -> None:
        """Waits until the rows have arrived on this rank and on the ranks of this machine for which
        it fetches rows. With NCCL, the host does not wait for rows.
        """
        exchange = self.start_transfer()
        # Another thread may be completing it at the same time.
        if not exchange.is_complete:
            with self._guard():
                exchange.complete()
        self._completed(self)

    @profiled(EXCHANGE)
    def wait(self) -> None:
        """Waits until the rows have arrived. Called by the thread that reads them.

        If NCCL transfers the rows, the current stream waits, and the host does not.
        """
        self.complete()
        if self._device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._mark_ready())
        if stream in self._used_by:
            return
        self._used_by.add(stream)
        for rows in self.planned.result().rows.values():
            for tensor in rows.tensors():
                tensor.record_stream(stream)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Waits for the rows; returns a context in which this thread's gathers can read them."""
        self.wait()
        with reading_rows(self.planned.result().rows):
            yield

    def _mark_ready(self) -> torch.cuda.Event:
        """Returns the event after which the rows are on the GPU. The first call records it in the
        current stream.
        """
        if self._ready is None:
            self._ready = torch.cuda.current_stream(self._device).record_event()
        return self._ready
