"""Packages that only some formats need."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

_EXTRAS = {"pyarrow": "ingest", "duckdb": "ingest", "dgl": "dgl", "torch_geometric": "pyg"}


class OptionalModule:
    """A module of an optional package, which is imported when it is first used.

    Args:
        name: the name of the module.
        purpose: the purpose for which it is needed, for the message.

    Raises:
        ImportError: at the first use: the package is not installed; tells how to install it.
    """

    def __init__(self, name: str, purpose: str) -> None:
        self._name, self._purpose = name, purpose

    def __getattr__(self, attribute: str) -> Any:
        try:
            with _interrupts_after():
                module = import_module(self._name)
        except ImportError as error:
            package = self._name.split(".")[0]
            raise ImportError(
                f"{self._purpose} needs {package}: pip install 'peergraph[{_EXTRAS[package]}]' "
                f"({error})"
            ) from error
        value = getattr(module, attribute)
        setattr(self, attribute, value)
        return value


@contextmanager
def _interrupts_after() -> Iterator[None]:
    """Returns a context in which Ctrl-C waits until its end.

    Where Python raises KeyboardInterrupt while DuckDB's module is made, nanobind aborts.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


_FILES = "reading Parquet files, CSV files and Arrow's tables"
arrow = OptionalModule("pyarrow", _FILES)
compute = OptionalModule("pyarrow.compute", _FILES)
csv = OptionalModule("pyarrow.csv", _FILES)
dataset = OptionalModule("pyarrow.dataset", _FILES)
filesystems = OptionalModule("pyarrow.fs", _FILES)
parquet = OptionalModule("pyarrow.parquet", _FILES)
duckdb = OptionalModule("duckdb", "looking up string or sparse ids, conditions and queries")
