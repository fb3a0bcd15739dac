"""Which tests hold the GPUs together, and which hold them alone."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread

from tests.gpu_turns import turn


def test_those_that_are_not_alone_hold_them_together(tmp_path: Path) -> None:
    with turn(alone=False, folder=tmp_path), turn(alone=False, folder=tmp_path):
        pass


def test_one_alone_waits_for_all_others_and_they_for_it(tmp_path: Path) -> None:
    order: list[str] = []
    first_is_in, first_may_go = Event(), Event()

    def hold(name: str, alone: bool) -> None:
        with turn(alone, tmp_path):
            order.append(name)
            if name == "first":
                first_is_in.set()
                first_may_go.wait(60)
                order.append("first leaves")

    first = Thread(target=hold, args=("first", False))
    first.start()
    assert first_is_in.wait(60)
    later = [Thread(target=hold, args=("alone", True)) for _ in range(2)]
    for thread in later:
        thread.start()
    assert order == ["first"]
    first_may_go.set()
    for thread in (first, *later):
        thread.join(60)
    assert order == ["first", "first leaves", "alone", "alone"]
