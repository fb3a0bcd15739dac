"""Modules of optional packages, which are imported at their first use."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from peergraph.store.ingest.read.optional import OptionalModule

_INTERRUPTED = """
import os, signal
before = 1
os.kill(os.getpid(), signal.SIGINT)
for _ in range(1000):
    pass
after = 2
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module during whose import Ctrl-C is pressed."""
    name = f"interrupted_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(_INTERRUPTED)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_an_interrupt_waits_until_the_module_is_imported(module: str) -> None:
    """KeyboardInterrupt within the import of DuckDB ends the process with SIGABRT."""
    handler = signal.getsignal(signal.SIGINT)
    package = OptionalModule(module, "a test")
    with pytest.raises(KeyboardInterrupt):
        _ = package.after
    assert sys.modules[module].after == 2
    assert signal.getsignal(signal.SIGINT) is handler
    assert package.after == 2


def test_imports_in_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_in_a_thread.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    values: list[int] = []
    package = OptionalModule("imported_in_a_thread", "a test")
    thread = threading.Thread(target=lambda: values.append(package.value))
    thread.start()
    thread.join()
    assert values == [3]
