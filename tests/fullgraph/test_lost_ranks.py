"""A rank that dies during an exchange: the others raise PeerLostError."""

from __future__ import annotations

import os
import signal
import time

import pytest

from peergraph.aggregate import layers
from peergraph.errors import PeerLostError
from peergraph.memory import Group
from peergraph.testing import run_ranks

from .test_exchanged_rows import WIDE, rows_of, structure_of, weight_of

LONG_S = 60.0


def lose(victim: int, mode: str, backward: bool) -> tuple[str, float]:
    """Trains until a rank is lost; the victim ends after some exchanges."""
    group = Group.current("cpu", timeout=LONG_S)
    structure = structure_of(group, mode)
    x, weight = rows_of(structure, grad=True), weight_of(WIDE)
    transport, count, in_backward = structure.plan.transport, 0, False
    start = transport.start

    def start_and_die(*args: object) -> object:
        nonlocal count
        count += 1
        if group.rank == victim and count > 20 and in_backward == backward:
            os.kill(os.getpid(), signal.SIGKILL)
        return start(*args)  # type: ignore[arg-type]

    transport.start = start_and_die  # type: ignore[assignment, method-assign]
    start_time = time.monotonic()
    try:
        for _ in range(1000):
            in_backward = False
            loss = layers.sage(structure, x, weight).sum()
            in_backward = True
            loss.backward()
    except PeerLostError as error:
        return str(error), time.monotonic() - start_time
    raise AssertionError("no rank was lost")


@pytest.mark.parametrize(
    ("ranks", "victim", "mode", "backward", "transport"),
    [
        (2, 0, "halo", False, "torch"),
        (3, 1, "blocks", True, "torch"),
        (2, 1, "blocks", False, "copy"),
    ],
)
def test_a_death_in_an_exchange_is_named(
    ranks: int,
    victim: int,
    mode: str,
    backward: bool,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PEERGRAPH_TRANSPORT", transport)
    results = run_ranks(lose, ranks, victim, mode, backward, may_die=[victim])
    for rank, result in enumerate(results):
        if rank != victim:
            message, seconds = result
            assert f"rank {victim} " in message, message
            assert seconds < LONG_S / 2
