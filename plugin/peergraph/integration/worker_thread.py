"""`WorkerThread`: a thread that calls functions in their order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any

from peergraph.memory.group.daemon_threads import next_of, start_daemon

_Call = tuple[Callable[[], Any], Future[Any]]


class WorkerThread:
    """Calls functions one after another, in the order in which they are submitted.

    The thread is a daemon, so that the end of a process does not wait for it. The threads of
    `concurrent.futures` would be waited for: a rank that ends with an error would wait for rows of
    ranks that wait for this rank.
    """

    def __init__(self, name: str, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """
        Args:
            name: the name of the thread.
            context: returns the context in which the thread calls the functions.
        """
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        # The thread holds no reference to this object, whose finalizer ends the thread.
        start_daemon(partial(_work, self._calls, context), name)
        self._close = weakref.finalize(self, self._calls.put, None)
        self._close.atexit = False

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Has the thread call a function. Returns at once.

        Returns:
            The result, or the exception, of the function or of the context.
        """
        future: Future[Any] = Future()
        self._calls.put((function, future))
        return future

    def close(self) -> None:
        """Ends the thread after the submitted functions. Waits for nothing. Idempotent."""
        self._close()


def _work(
    calls: SimpleQueue[_Call | None], context: Callable[[], AbstractContextManager[Any]]
) -> None:
    try:
        with context():
            while (call := next_of(calls)) is not None:
                _run(*call)
                del call  # what it refers to belongs to the caller
    except BaseException as error:
        while (call := next_of(calls)) is not None:
            call[1].set_exception(error)


def _run(function: Callable[[], Any], future: Future[Any]) -> None:
    """Calls a function, and passes its result or its exception to the future."""
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
    finally:
        # Otherwise the exception, its traceback and the future keep each other alive.
        del function, future
