"""An error that another thread raises in the main thread leaves no lock of Python locked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from peergraph.errors import PeerLostError
from peergraph.memory.group.interrupt import Interrupt


def _interrupted(work: Callable[[], object], seconds: float) -> PeerLostError:
    """Repeats `work` in this thread until another one interrupts it."""
    interrupt, error = Interrupt(), PeerLostError("rank 1 is lost")
    go = threading.Event()

    def arm() -> None:
        go.wait()
        time.sleep(seconds)
        interrupt.arm(error)

    thread = threading.Thread(target=arm)
    thread.start()
    try:
        go.set()
        while True:
            work()
    except PeerLostError as caught:
        return caught
    finally:
        interrupt.disarm()
        thread.join()


def test_conditions_are_free_afterwards() -> None:
    for round_ in range(100):
        condition = threading.Condition(threading.Lock())

        def enter(condition: threading.Condition = condition) -> None:
            with condition:
                pass

        error = _interrupted(enter, round_ % 10 * 1e-4)
        assert str(error) == "rank 1 is lost"
        assert condition.acquire(blocking=False), round_


@pytest.mark.timeout(60)
def test_threads_of_a_pool_end() -> None:
    for round_ in range(30):
        with ThreadPoolExecutor(2) as pool:
            _interrupted(lambda: pool.submit(int).result(), round_ % 10 * 1e-3)


def test_waits_end() -> None:
    start = time.monotonic()
    _interrupted(lambda: threading.Event().wait(0.2), 0.0)
    assert time.monotonic() - start < 10


def test_code_that_stays_in_a_context_managers_entry() -> None:
    class Endless:
        def __enter__(self) -> None:
            while True:
                time.sleep(0.01)

        def __exit__(self, *_: object) -> None:
            pass

    def enter() -> None:
        with Endless():
            pass

    _interrupted(enter, 0.0)


def test_a_cancelled_error_is_not_raised() -> None:
    interrupt = Interrupt()
    interrupt.disarm()
    thread = threading.Thread(target=lambda: interrupt.arm(PeerLostError("late")))
    thread.start()
    thread.join()
    for _ in range(1000):
        time.monotonic()
    assert interrupt.raised.is_set()
