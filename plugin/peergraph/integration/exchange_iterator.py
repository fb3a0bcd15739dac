"""`ExchangeIterator`: batches of a store that is split over machines, ahead of training."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from peergraph.integration.batch_maker import BatchMaker, PendingBatch
from peergraph.memory.device.launching import limit_blocks
from peergraph.memory.distributed.exchange_session import ExchangeSession, Requests
from peergraph.memory.distributed.exchange_streams import in_stream
from peergraph.memory.distributed.fetched_rows import FetchedRows
from peergraph.store.store import Store

# Rounds after the one of the batch that is returned. A round's ids are exchanged while the loop
# trains once, and its rows while the loop trains on the batches of the round before, so that `next`
# does not wait for what it has just begun.
_ROUNDS_SAMPLED_AHEAD = 2
_ROUNDS_SENT_AHEAD = 1
# Batches after the one that is returned.
_MADE_AHEAD = 1


def is_split(store: Store | None) -> bool:
    """Returns whether the rows of a store's tables are split over machines."""
    return store is not None and store.exchange is not None


@dataclass
class _Opened:
    """The samples, the session and the thread, which are closed when the iteration ends."""

    samples: Iterator[Any]
    maker: BatchMaker
    session: ExchangeSession | None = None

    def close(self) -> None:
        self.maker.close()
        if self.session is not None:
            self.session.leave()
        close = getattr(self.samples, "close", None)
        if close is not None:
            close()


class ExchangeIterator:
    """Iterates batches that need rows of other machines.

    The rows of one batch, or of several that follow each other, are exchanged in one round. Each
    ``next`` takes a sample of the round after the next one, and returns a batch. After the last
    sample of a round it requests the round's rows, and the following ``next`` begins to send the
    rows. Ids and rows are therefore transferred while the loop trains, and a thread may make the
    next batch meanwhile. Ranks of all machines iterate the same loaders in the same order. If a
    rank has fewer batches, or leaves its loop, the others go on. ``next`` is called by one thread
    only, the training thread: on GPUs it determines the order of NCCL's kernels.
    """

    def __init__(
        self,
        store: Store,
        samples: Iterator[Any],
        requests: Callable[[Any], Requests],
        make_batch: Callable[[Any, FetchedRows], Any],
        loader: str,
        *,
        ahead: bool = True,
        max_blocks: int = 0,
        modes: Callable[[], AbstractContextManager[Any]] | None = None,
        deliver: Callable[[Any], None] | None = None,
        record_stream: Callable[[torch.cuda.Stream, Any], None] | None = None,
    ) -> None:
        """
        Args:
            store: a store with rows that are split over machines.
            samples: the samples of this rank's batches. If the iterator has ``close``, it is called
                when the iteration ends.
            requests: returns the tables that the batch of a sample reads, each with the users' ids.
                Tables that are not split are ignored.
            make_batch: makes the batch of a sample. During the call this thread's gathers can read
                the requested rows; later gathers can do so within ``fetched.reading()``.
            loader: the loader and the tables that it reads, as text for errors; the same on all
                ranks.
            ahead: whether to take samples two rounds ahead, to send rows one round ahead, and to
                make batches one batch ahead; otherwise a round is one batch, and all is done when
                the loop asks for it.
            max_blocks: the largest number of thread blocks of a gather, both of rows for this
                rank's batches and of rows for other machines; 0: no limit.
            modes: if given, a thread calls `make_batch`, in the context that this returns; needs
                `ahead`. Otherwise ``next`` calls it.
            deliver: called with a sample before its batch, or its error, is passed to the loop, and
                with None at the end.
            record_stream: keeps the memory of a batch, or of a sample, until a stream has used it.
                On a GPU, samples are requested and batches are made in streams of the exchange.
        """
        exchange = store.exchange
        if exchange is None:
            raise ValueError("store has no rows that are split over machines")
        if modes is not None and not ahead:
            raise ValueError("a thread makes batches only with ahead=True")
        self._store = store
        self._exchange = exchange
        self._requests = requests
        self._per_round = exchange.batches_per_round if ahead else 1
        # Ranks with different numbers of batches in a round would wait for each other. Their texts
        # differ, so they get an error instead.
        together = f", {self._per_round} batches together" if self._per_round > 1 else ""
        self._loader = f"{loader}{together}"
        rounds_sampled, self._rounds_sent_ahead, self._made_ahead = (
            (_ROUNDS_SAMPLED_AHEAD, _ROUNDS_SENT_AHEAD, _MADE_AHEAD) if ahead else (0, 0, 0)
        )
        self._sampled_ahead = rounds_sampled * self._per_round
        self._max_blocks = max_blocks
        self._deliver = deliver or (lambda sample: None)
        self._record_stream = record_stream
        # Also counts the places of a round that stay empty after the last sample. So ranks with
        # fewer batches request their rounds at the same `next` as the others.
        self._num_taken = 0
        self._num_returned = 0
        self._has_taken_all = False
        # The round that is not complete yet.
        self._round: list[tuple[PendingBatch, Requests]] = []
        # Of requested rounds.
        self._batches: deque[PendingBatch] = deque()
        self._num_sent = 0
        self._unsent: deque[FetchedRows] = deque()
        self._is_over = False
        stream = exchange.streams.batches
        self._maker = BatchMaker(make_batch, record_stream, store.device, stream, max_blocks, modes)
        self._opened = _Opened(samples, self._maker)
        self._close = weakref.finalize(self, _Opened.close, self._opened)
        # At the end of the process the exchange itself informs the other ranks.
        self._close.atexit = False
        store.register_reader(self)

    def __iter__(self) -> ExchangeIterator:
        return self

    def __len__(self) -> int:
        """Returns the number of batches of the whole iteration."""
        return len(self._opened.samples)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._is_over:
            if self._store.closed:
                raise RuntimeError("this store has been closed: there are no more batches of it")
            raise StopIteration
        if self._opened.session is None:
            self._opened.session = self._exchange.open(self._loader)
        session = self._opened.session
        while self._num_taken <= self._num_returned + self._sampled_ahead and not session.finished:
            self._take_sample(session)
        self._send_due_rounds()
        for begun in islice(self._batches, 1 + self._made_ahead):
            self._maker.begin(begun)
        batch = self._batches.popleft() if self._batches else None
        if batch is not None:
            self._num_returned += 1
            self._maker.finish(batch)
        if batch is None:
            self._is_over = True
            self._deliver(None)
            self.close()
            raise StopIteration
        self._deliver(batch.sample)
        if batch.error is not None:
            # The error's traceback refers to this batch. If the batch kept the error, both would
            # stay in memory until the garbage collector runs, and the batch's rows with them.
            error, batch.error = batch.error, None
            try:
                raise error
            finally:
                del error
        if batch.ready is not None:
            stream = torch.cuda.current_stream(self._store.device)
            stream.wait_event(batch.ready)
            if self._record_stream is not None:
                self._record_stream(stream, batch.batch)
        return batch.batch

    def close(self) -> None:
        """Ends the iteration: this rank has no more batches.

        Does not wait for other ranks to finish. On GPUs with NCCL, it may wait until they have
        called ``next`` as often as this rank.
        """
        self._is_over = True
        self._batches.clear()
        self._unsent.clear()
        self._round.clear()
        self._close()

    @contextmanager
    def _on_stream(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Returns a context for the work of `next`: in a stream of the exchange, and with few
        blocks. The stream is None on the CPU.
        """
        with in_stream(stream), limit_blocks(self._max_blocks):
            yield

    def _take_sample(self, session: ExchangeSession) -> None:
        """Takes the next sample. At the end of a round, requests the rows of its batches."""
        # Not in the stream of rows: there, rows of earlier batches may still wait for the network.
        with self._on_stream(self._exchange.streams.ids):
            if not self._has_taken_all:
                self._add_sample()
            self._num_taken += 1
            if self._num_taken % self._per_round == 0:
                self._request_round(session)

    def _add_sample(self) -> None:
        """Adds the next sample to the round, or its error."""
        batch = PendingBatch(position=len(self._round))
        requests: Requests = ()
        try:
            batch.sample = next(self._opened.samples)
            requests = self._requests(batch.sample)
        except StopIteration:
            self._has_taken_all = True
            return
        except Exception as error:
            batch.error = error
        self._round.append((batch, requests))

    def _request_round(self, session: ExchangeSession) -> None:
        """Requests the rows of the round. After the last round, tells the session so."""
        complete, self._round = self._round, []
        if complete:
            fetched = session.request(*(requests for _, requests in complete))
            self._unsent.append(fetched)
            for batch, _ in complete:
                batch.fetched = fetched
                self._batches.append(batch)
        if self._has_taken_all:
            session.finish()

    def _send_due_rounds(self) -> None:
        """Begins to send the rows of the requested rounds that are due now."""
        due = self._num_returned // self._per_round + self._rounds_sent_ahead
        while self._unsent and self._num_sent <= due:
            self._num_sent += 1
            with self._on_stream(self._exchange.streams.rows):
                self._unsent.popleft().start_transfer()
