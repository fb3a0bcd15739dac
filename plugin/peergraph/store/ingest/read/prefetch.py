"""Reads batches ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from peergraph.store.ingest.read.batch import Batch, Batches

_AHEAD = 2


@contextmanager
def read_ahead(batches: Batches) -> Iterator[Iterator[Batch]]:
    """Returns a context in which a thread reads up to two batches ahead. An error of the thread is
    raised in place of its batch. The end closes the batches, whose reader may have threads, too.
    """
    waiting: queue.Queue[Batch | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def read() -> None:
        try:
            with closing(batches):
                for batch in batches:
                    put(batch)
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:
            put(error)

    def received() -> Iterator[Batch]:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=read, name="peergraph ingest", daemon=True)
    thread.start()
    try:
        yield received()
    finally:
        stopped.set()
        thread.join()
