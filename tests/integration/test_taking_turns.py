"""The switch interval while a thread makes batches, and afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from peergraph.integration import taking_turns


@pytest.fixture(autouse=True)
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield 0.004
    sys.setswitchinterval(before)


def test_is_short_as_long_as_anything_needs_it(interval: float) -> None:
    first, second = taking_turns(), taking_turns()
    with first:
        second.__enter__()
        assert sys.getswitchinterval() == pytest.approx(5e-5, rel=0.01)
    assert sys.getswitchinterval() == pytest.approx(5e-5, rel=0.01)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(interval)


def test_a_setting_of_the_user_stays() -> None:
    with taking_turns():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_a_shorter_interval_stays() -> None:
    sys.setswitchinterval(1e-5)
    with taking_turns():
        assert sys.getswitchinterval() == pytest.approx(1e-5, rel=0.01)
    assert sys.getswitchinterval() == pytest.approx(1e-5, rel=0.01)


def test_loops_that_end_in_any_way_put_it_back(interval: float) -> None:
    pytest.importorskip("torch_geometric")
    import peergraph_pyg

    for number in peergraph_pyg.prefetch(range(20)):
        if number < 10:  # the thread may have made the last ones, and ended
            assert sys.getswitchinterval() == pytest.approx(5e-5, rel=0.01)
    assert sys.getswitchinterval() == pytest.approx(interval)
    batches: Any = iter(peergraph_pyg.prefetch(range(100)))
    next(batches)
    batches.close()
    assert sys.getswitchinterval() == pytest.approx(interval)
