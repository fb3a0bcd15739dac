"""`BatchMaker`: makes batches once the rows of other machines have been sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from peergraph.errors import PeerLostError
from peergraph.integration.taking_turns import taking_turns
from peergraph.integration.worker_thread import WorkerThread
from peergraph.memory import on_thread_stream
from peergraph.memory.device.launching import limit_blocks
from peergraph.memory.distributed.exchange_streams import in_stream
from peergraph.memory.distributed.fetched_rows import FetchedRows
from peergraph.profiling import WAIT_BATCH, profile_range


@dataclass
class PendingBatch:
    """A batch that is being prepared.

    Attributes:
        sample: the sample; None if there is an error instead.
        fetched: the rows of other machines for the round of the batch, until the batch is made.
        position: the position of the batch in its round.
        batch: the batch, once it is made.
        error: the error of the sample, of its requests or of the batch.
        is_begun: whether :meth:`BatchMaker.begin` has been called.
        ready: after the work that makes the batch, on a GPU.
        result: done when a thread has made the batch; None without a thread.
    """

    sample: Any = None
    fetched: FetchedRows | None = None
    position: int = 0
    batch: Any = None
    error: BaseException | None = None
    is_begun: bool = False
    ready: torch.cuda.Event | None = None
    result: Future[Any] | None = None


class BatchMaker:
    """Makes batches in their order: in a thread, or when they are asked for."""

    def __init__(
        self,
        make_batch: Callable[[Any, FetchedRows], Any],
        record_stream: Callable[[torch.cuda.Stream, Any], None] | None,
        device: torch.device,
        stream: torch.cuda.Stream | None,
        max_blocks: int,
        modes: Callable[[], AbstractContextManager[Any]] | None,
    ) -> None:
        """
        Args:
            make_batch: makes the batch of a sample. During the call this thread's gathers can read
                the requested rows.
            record_stream: keeps the memory of a sample until a stream has used it.
            device: the device of the tables.
            stream: the stream in which batches are made; None on a CPU.
            max_blocks: the largest number of thread blocks of the batches' gathers; 0: no limit.
            modes: returns the context of the thread, with torch's modes; None: there is no thread.
        """
        self._finish = partial(_finish, make_batch, record_stream, device)
        self._stream = stream
        self._max_blocks = max_blocks
        self._thread: WorkerThread | None = None
        if modes is not None:

            @contextmanager
            def context() -> Iterator[None]:
                with on_thread_stream(stream), limit_blocks(max_blocks), modes(), taking_turns():
                    yield

            self._thread = WorkerThread("peergraph batches", context)

    def begin(self, batch: PendingBatch) -> None:
        """Begins to make a batch. The transfer of the rows of its round has been started before.

        Returns at once; without a thread, the batch is made now if a GPU's stream waits for its
        rows. Idempotent.
        """
        if batch.is_begun:
            return
        batch.is_begun = True
        assert batch.fetched is not None
        # An error of the ids concerns this batch only: the other ranks get their rows, and the loop
        # may go on with the next batch.
        batch.error = batch.error or batch.fetched.request_errors.pop(batch.position, None)
        if self._thread is not None:
            batch.result = self._thread.submit(partial(self._finish, batch))
        elif batch.fetched.is_queued:
            self._finish_here(batch)

    def finish(self, batch: PendingBatch) -> None:
        """Waits until a batch is made. Raises PeerLostError if its rows cannot come."""
        if batch.result is not None:
            with profile_range(WAIT_BATCH):
                batch.result.result()
        else:
            self._finish_here(batch)

    def _finish_here(self, batch: PendingBatch) -> None:
        with in_stream(self._stream), limit_blocks(self._max_blocks):
            self._finish(batch)

    def close(self) -> None:
        """Ends the thread after the batches that were begun. Waits for nothing."""
        if self._thread is not None:
            self._thread.close()


def _finish(
    make_batch: Callable[[Any, FetchedRows], Any],
    record_stream: Callable[[torch.cuda.Stream, Any], None] | None,
    device: torch.device,
    batch: PendingBatch,
) -> None:
    """Waits for the rows and makes the batch, unless it is made already.

    A function, so that the thread does not keep the iterator alive: the loop's own thread has to
    leave the exchange (see `ExchangeSession.leave`).
    """
    fetched, batch.fetched = batch.fetched, None
    if fetched is None:
        return
    stream = None if device.type == "cpu" else torch.cuda.current_stream(device)
    if stream is not None and record_stream is not None:
        # The rows are ready after the sample, which was made in another stream.
        record_stream(stream, batch.sample)
    if batch.error is not None:
        fetched.wait()
    else:
        try:
            with fetched.reading():
                batch.batch = make_batch(batch.sample, fetched)
        except PeerLostError:
            raise
        except Exception as error:
            batch.error = error
    if stream is not None:
        batch.ready = stream.record_event()
