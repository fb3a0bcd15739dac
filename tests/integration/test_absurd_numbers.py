"""Absurd numbers end in errors that name the argument: not in loops, allocations or hangs."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import run_python


def test_absurd_numbers_are_refused() -> None:
    done = run_python(Path(__file__).with_name("absurd_numbers.py"))
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr
