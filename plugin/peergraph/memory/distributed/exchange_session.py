"""One iteration of a loader, in which all ranks exchange rows round by round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue

import torch
from typing_extensions import Self

from peergraph.errors import PeerLostError
from peergraph.memory.device.launching import limit_blocks, most_blocks
from peergraph.memory.device.thread_stream import on_thread_stream
from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from peergraph.memory.distributed.exchange_round import ExchangeRound
from peergraph.memory.distributed.exchange_streams import ExchangeStreams, in_stream
from peergraph.memory.distributed.fetched_rows import FetchedRows
from peergraph.memory.distributed.id_exchange import IdExchange, RoundPlan
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.wanted_rows import wanted_rows_and_errors
from peergraph.memory.group.daemon_threads import daemon_thread, next_of
from peergraph.memory.table.table import Table
from peergraph.profiling import EXCHANGE, profiled

Requests = Sequence[tuple[Table, torch.Tensor]]


class ExchangeSession:
    """One iteration of a loader. Every rank of every machine opens the session, and leaves it.

    A thread of the session exchanges the ids of requested rounds, over Gloo, and gathers the rows
    for other machines. The thread that iterates sends and receives the rows. Both work round by
    round, in the same order on all ranks; a round is one batch of each rank, or several. When a
    rank has no more batches, its session's thread serves the other ranks until all have finished.
    As a context manager, the session is left at the end.
    """

    def __init__(
        self,
        loader: str,
        layout: Layout,
        network: ExchangeNetwork,
        traffic: TrafficCounter,
        streams: ExchangeStreams,
    ) -> None:
        """
        Args:
            loader: the loader and the tables that it reads, as text; the same on all ranks.
            streams: the streams of the exchange.
        """
        self.loader = loader
        self.network = network
        self.finished = False
        """Whether this rank requests no more batches."""
        self.left = False
        """Whether this rank has no use for the session any more."""
        self._streams = streams
        self._layout = layout
        self._traffic = traffic
        self._ids = IdExchange(layout, network, traffic, loader)
        self._requested: SimpleQueue[FetchedRows | None] = SimpleQueue()
        # Rounds in which this rank still has to take part: the keys, in their order. The thread
        # that iterates adds rounds while other threads complete earlier ones; no change of a dict
        # is lost.
        self._incomplete: dict[FetchedRows, None] = {}
        # Of gathers of rows for other machines, as the thread that iterates has set it.
        self._max_blocks = 0
        # The thread that iterates, once it has requested a batch.
        self._iterating: int | None = None
        self._error: Exception | None = None
        self._threads: list[threading.Thread] = []

    def request(self, *batches: Requests) -> FetchedRows:
        """Requests the rows of this rank's next batches: those of a round. Returns at once. The
        caller then calls :meth:`FetchedRows.start_transfer`, in the order of the requests.

        Collective over the ranks that have a batch.

        Args:
            batches: for each batch, pairs of a table and the users' ids that the batch will gather
                from it. Tables that are not split over machines are ignored. The ids must not
                change until :meth:`FetchedRows.start_transfer` has returned. On a GPU, they are
                ready in the current stream.

        Raises:
            RuntimeError: this rank has finished.
            PeerLostError, CollectiveMismatchError: such an error has ended the exchange.
        """
        if self.finished:
            raise RuntimeError(f"{self.loader}: this iteration has been closed")
        self._check_open()
        if not self._threads:
            self._start(self._work, "peergraph exchange", self._streams.ids)
            self._check_open()
        split = [
            [(t, ids) for t, ids in requests if isinstance(t, DistributedTable)]
            for requests in batches
        ]
        device = self.network.group.device
        fetched = FetchedRows(split, self._guard, self._drop, device)
        self._iterating = threading.get_ident()
        self._incomplete[fetched] = None
        self._traffic.add(batches=len(batches))
        self._max_blocks = most_blocks()
        self._requested.put(fetched)
        return fetched

    @profiled(EXCHANGE)
    def fetch(self, *batches: Requests) -> FetchedRows:
        """Requests the rows of this rank's next batches, waits until the ids have been exchanged,
        and begins to send rows. Synchronises with a GPU for the numbers of rows, but not for the
        transfer of the rows.

        Collective over the ranks that have a batch.

        Args:
            batches: as for :meth:`request`.

        Raises:
            IndexError: an id is out of range. The other ranks, and other batches, get their rows.
            PeerLostError: a rank is lost, or did not join in time.
            CollectiveMismatchError: a rank iterates another loader.
            RuntimeError: this rank has finished.
        """
        fetched = self.request(*batches)
        fetched.send()
        return fetched

    def finish(self) -> None:
        """Declares that this rank requests no more batches. Returns at once; the session's thread
        serves the other ranks. Rows of requested batches can still be sent. Idempotent.
        """
        if self.finished:
            return
        self.finished = True
        if not self._threads:
            self._start(self._work, "peergraph exchange", self._streams.ids)
        self._requested.put(None)

    def leave(self) -> None:
        """Finishes, and takes part in the rounds of batches that were requested and are not wanted
        any more. Idempotent.

        Does not wait for other ranks to finish. With NCCL, the thread that iterates waits until all
        ranks have requested as many batches as this one, or have finished: it sends the rows, after
        those of earlier batches. Other threads, in which the garbage collector may call this, wait
        for nothing.
        """
        if self.left:
            return
        self.left = True
        requested, self._incomplete = self._incomplete, {}
        rest = [fetched for fetched in list(requested) if not fetched.is_complete]
        try:
            if rest and not self.broken:
                self._transfer_unwanted(rest)
        finally:
            # Last: `join` waits for the session's thread first, and then for those started above.
            self.finish()

    def _transfer_unwanted(self, rest: Sequence[FetchedRows]) -> None:
        """Transfers the rows of rounds that only the other ranks still want. A thread does what
        this one must not wait for.
        """
        by_nccl = self.network.has_nccl
        if by_nccl and threading.get_ident() == self._iterating:
            # `join` raises the error.
            with in_stream(self._streams.rows), suppress(Exception):
                for fetched in rest:
                    fetched.start_transfer()
        stream = self._streams.rows if by_nccl else self._streams.ids
        self._start(lambda: _complete(rest), "peergraph exchange of unwanted rows", stream)

    def _drop(self, fetched: FetchedRows) -> None:
        """Frees the rows of a round in which this rank has nothing left to do."""
        self._incomplete.pop(fetched, None)

    def join(self) -> None:
        """Waits until all ranks have finished. If an error has ended the exchange, raises it."""
        for thread in self._threads:
            if not self.broken:
                thread.join()
        if self._error is not None:
            raise self._error

    @property
    def broken(self) -> bool:
        """Whether an error has ended the exchange."""
        return self._error is not None

    def _start(self, work: Callable[[], None], name: str, stream: torch.cuda.Stream | None) -> None:
        """Starts a thread. If it cannot start, or cannot use its stream, the session ends. Without
        its stream it calls `work` all the same, so that `work` passes the error on.
        """

        def run() -> None:
            with ExitStack() as on_stream:
                # `join` raises the error.
                with suppress(Exception), self._guard():
                    on_stream.enter_context(on_thread_stream(stream))
                work()

        thread = daemon_thread(run, name)
        # Before the start, during which the garbage collector may call `leave`.
        self._threads.append(thread)
        # `join` raises the error.
        with suppress(Exception), self._guard():
            thread.start()

    def _work(self) -> None:
        """The session's thread."""
        while (fetched := next_of(self._requested)) is not None:
            try:
                with self._guard():
                    # A local variable would keep the rows in memory until the next batch.
                    fetched.planned.set_result(self._plan(fetched))
            except Exception as error:
                fetched.planned.set_exception(error)
            del fetched  # its rows are the batch's
        # `join` raises the error.
        with suppress(Exception), self._guard():
            self._answer()

    def _plan(self, fetched: FetchedRows) -> ExchangeRound:
        """Exchanges the ids of a round, and gathers the rows that other machines request."""
        if fetched.requested is not None:
            torch.cuda.current_stream().wait_event(fetched.requested)
        requests, fetched.request_errors = wanted_rows_and_errors(fetched.batches, self._layout)
        return self._round(self._ids.exchange(requests, finished=False))

    def _round(self, plan: RoundPlan) -> ExchangeRound:
        with limit_blocks(self._max_blocks):
            return ExchangeRound(plan, self._layout, self.network, self._traffic, self.loader)

    def _answer(self) -> None:
        """Serves the other ranks until all have finished.

        The rows are sent in another thread: other ranks take rows of a round only after the ids of
        the next round have been exchanged.
        """
        num_ranks = self.network.group.machines.world_size
        rounds: SimpleQueue[ExchangeRound | None] = SimpleQueue()
        is_serving = False
        try:
            while (plan := self._ids.exchange({}, finished=True)).finished < num_ranks:
                if not is_serving:
                    self._start(
                        lambda: self._serve(rounds), "peergraph exchange of rows", self._streams.ids
                    )
                    is_serving = True
                rounds.put(self._round(plan))
        finally:
            rounds.put(None)

    def _serve(self, rounds: SimpleQueue[ExchangeRound | None]) -> None:
        """Sends the rows of rounds until None comes."""
        # `join` raises the error.
        with suppress(Exception), self._guard():
            while (next_round := next_of(rounds)) is not None:
                next_round.send()
                next_round.complete()

    def _check_open(self) -> None:
        """Raises the error that has ended the exchange. A thread may have met it before the thread
        that iterates asks for anything.
        """
        if self._error is not None:
            raise self._error

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Returns a context for a part of a round. If the part fails, the session ends, so that
        other ranks that wait for this rank get an error. If two threads fail, the error is the
        first one's.
        """
        self._check_open()
        try:
            yield
        except Exception as error:
            first = self._end(error)
            if first is not error:
                raise first from error
            raise
        except BaseException as error:
            self._end(PeerLostError(f"{type(error).__name__} ended the exchange of rows"))
            raise

    def _end(self, error: Exception) -> Exception:
        """Ends the exchange; returns the first error."""
        first = self._error = self._error or error
        self.network.close()
        return first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def _complete(rounds: Sequence[FetchedRows]) -> None:
    """Completes rounds in their order. An error ends their session, which keeps it."""
    with suppress(Exception):
        for fetched in rounds:
            fetched.complete()
