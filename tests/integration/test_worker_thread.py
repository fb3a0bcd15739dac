"""The thread that makes batches of split stores."""

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


class _Fails:
    """A function that raises an error."""

    def __call__(self) -> None:
        raise ValueError("no result")


def test_functions_are_called_in_their_order_before_the_thread_ends() -> None:
    calls: list[int] = []
    thread = WorkerThread("calls", nullcontext)
    results = [thread.submit(lambda n=n: calls.append(n) or n) for n in range(20)]
    thread.close()
    thread.close()
    assert [result.result(_TIMEOUT_S) for result in results] == list(range(20))
    assert calls == list(range(20))


def test_the_thread_ends_with_its_object() -> None:
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
def test_an_error_is_raised_and_keeps_nothing(
    context: Callable[[], AbstractContextManager[None]], message: str
) -> None:
    thread = WorkerThread("errors", context)
    gc.collect()
    gc.disable()
    try:
        function = _Fails()
        freed = threading.Event()
        weakref.finalize(function, freed.set)
        result = thread.submit(function)
        error = result.exception(_TIMEOUT_S)
        assert str(error) == message
        del function, result, error
        thread.submit(_Fails()).exception(_TIMEOUT_S)
        assert freed.wait(_TIMEOUT_S)
    finally:
        gc.enable()
