"""Exchanges of rows that do not run under sums, and exchanges that move nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peergraph.fullgraph.exchange.transport import Pending, Transport


@contextmanager
def exchange_in_turn(transport: Transport) -> Iterator[None]:
    """Within this, sums that follow an exchange in the program wait for its end (MG-GCN 6.3)."""
    start = transport.start

    def start_and_wait(*arguments: Any) -> Pending:
        pending = start(*arguments)
        pending.wait()
        return pending

    transport.start = start_and_wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        del transport.start  # type: ignore[method-assign]


@contextmanager
def no_exchange(transport: Transport) -> Iterator[None]:
    """Within this, exchanges move nothing, so that sums are timed alone; they are wrong."""

    def start_nothing(*_: Any) -> Pending:
        return _NoExchange()

    transport.start = start_nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        del transport.start  # type: ignore[method-assign]


class _NoExchange:
    """An exchange that moves nothing."""

    def wait(self) -> None:
        """There is nothing to wait for."""
