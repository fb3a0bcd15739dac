"""`WorkerThread`: the order of calls, their errors, and the end of the thread."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from peergraph.integration.worker_thread import WorkerThread

_TIMEOUT_S = 20


@contextmanager
def _failing_context() -> Iterator[None]:
    raise OSError("no context")
    yield


class _Raising:
    """A function that raises an error."""

    def __call__(self) -> None:
        raise ValueError("no result")


def test_all_functions_are_called_in_the_order_of_submission() -> None:
    calls: list[int] = []
    thread = WorkerThread("calls", nullcontext)
    results = [thread.submit(lambda n=n: calls.append(n) or n) for n in range(20)]
    thread.close()
    thread.close()
    assert [result.result(_TIMEOUT_S) for result in results] == list(range(20))
    assert calls == list(range(20))


def test_the_thread_ends_when_the_worker_is_freed() -> None:
    name = "a thread that ends"
    thread = WorkerThread(name, nullcontext)
    assert thread.submit(threading.current_thread).result(_TIMEOUT_S).name == name
    worker = thread.submit(threading.current_thread).result(_TIMEOUT_S)
    del thread
    worker.join(_TIMEOUT_S)
    assert not worker.is_alive()


@pytest.mark.parametrize(
    ("context", "message"), [(nullcontext, "no result"), (_failing_context, "no context")]
)
def test_an_error_is_raised_and_the_function_is_freed(
    context: Callable[[], AbstractContextManager[None]], message: str
) -> None:
    thread = WorkerThread("errors", context)
    gc.collect()
    gc.disable()
    try:
        function = _Raising()
        freed = threading.Event()
        weakref.finalize(function, freed.set)
        result = thread.submit(function)
        error = result.exception(_TIMEOUT_S)
        assert str(error) == message
        del function, result, error
        thread.submit(_Raising()).exception(_TIMEOUT_S)
        assert freed.wait(_TIMEOUT_S)
    finally:
        gc.enable()
