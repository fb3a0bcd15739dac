"""What collectives say when ranks do not do the same, are late, or send what cannot be sent."""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial
from typing import Any

import pytest
import torch

from peergraph.errors import CollectiveMismatchError, PeerLostError
from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.testing import run_ranks
from tests.multirank.processes import interrupt_when_it_waits, is_running, send_once_given_up

LONG_S = 100.0


def _different_collectives() -> tuple[str, str]:
    group = Group.current(timeout=LONG_S)
    call = partial(group.all_gather, b"x") if group.rank == 1 else group.barrier
    with pytest.raises(CollectiveMismatchError) as caught:
        call()
    with pytest.raises(PeerLostError) as again:
        group.barrier()
    return str(caught.value), str(again.value)


def test_different_collectives_are_named_on_every_rank() -> None:
    message = (
        "the ranks are in different collectives: ranks 0, 2 called Group.barrier (call 1), "
        "rank 1 called Group.all_gather (call 1)"
    )
    assert run_ranks(_different_collectives, 3) == [(message, message)] * 3


def _slow_sender() -> str:
    group = Group.current(timeout=LONG_S)
    if group.rank == 2:
        send_once_given_up(group, 1)
    with pytest.raises(CollectiveMismatchError) as caught:
        (group.barrier if group.rank else partial(group.all_gather, b"x"))()
    return str(caught.value)


def test_different_collectives_are_named_before_all_values_have_arrived() -> None:
    message = (
        "the ranks are in different collectives: rank 0 called Group.all_gather (call 1), "
        "ranks 1, 2 called Group.barrier (call 1)"
    )
    assert run_ranks(_slow_sender, 3) == [message] * 3


def _within_the_same() -> str:
    group = Group.current(timeout=LONG_S)
    with pytest.raises(CollectiveMismatchError) as caught, group.collective("outer"):
        group.broadcast(1, src=group.rank)
    return str(caught.value)


def test_different_collectives_within_one_are_named() -> None:
    assert run_ranks(_within_the_same, 2)[0] == (
        "the ranks are in different collectives: "
        "rank 0 called outer > Group.broadcast from rank 0 (call 1), "
        "rank 1 called outer > Group.broadcast from rank 1 (call 1)"
    )


def _timeouts() -> list[int]:
    rank = Group.current(timeout=60).rank
    group = Group.current(timeout=60 + rank)
    assert group.timeout == 60 + rank
    return group.all_gather(rank)


def test_ranks_may_have_different_timeouts() -> None:
    assert run_ranks(_timeouts, 2) == [[0, 1]] * 2


def _disagree() -> str:
    group = Group.current(timeout=60)
    group.agree(plan="host", rows=3)
    with pytest.raises(ValueError, match="the ranks disagree about") as caught:
        group.agree(plan="host", rows=min(group.rank, 1))
    group.barrier()
    return str(caught.value)


def test_arguments_that_must_agree() -> None:
    message = "the ranks disagree about rows: 0 on rank 0, 1 on ranks 1, 2"
    assert run_ranks(_disagree, 3) == [message] * 3


class _NotHere:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_raise, ("not here",))


def _raise(text: str) -> None:
    raise LookupError(text)


def _unsendable() -> list[str]:
    group = Group.current(timeout=60)
    said = []
    for collective in (group.all_gather, group.broadcast):
        value: Any = (lambda: 0) if group.rank == 0 else 0
        with pytest.raises(Exception, match="pickle|local object") as caught:
            collective(value)
        said.append(f"{type(caught.value).__name__}: {caught.value}")
        with pytest.raises(RuntimeError, match="of rank 0 cannot be unpickled here: LookupError"):
            collective(_NotHere() if group.rank == 0 else 0)
    assert group.all_gather(group.rank) == [0, 1]
    return said


def test_values_that_cannot_be_sent() -> None:
    first, second = run_ranks(_unsendable, 2)
    assert all("rank 0 could not send its value: " in text for text in second)
    assert len(first) == 2
    assert not any("rank 0" in text for text in first)


class _Demanding(Exception):
    """Is pickled, but not unpickled: pickle gives its constructor one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class _Growing(Exception):
    """Comes out of pickle with another text."""

    def __init__(self, text: str) -> None:
        super().__init__(f"<{text}>")


def _fails_with(kind: str) -> tuple[str, str]:
    group = Group.current(timeout=60)

    def work() -> None:
        if group.rank == 1:
            if kind == "local":
                raise type("Local", (Exception,), {})("on purpose")
            if kind == "lambda":
                raise ValueError("on purpose", lambda: 0)
            raise _Demanding("on", "purpose") if kind == "demanding" else _Growing("on purpose")

    with pytest.raises(Exception, match="on purpose") as caught:
        collective_call(group, work)
    group.barrier()
    return type(caught.value).__name__, f"{caught.value}\n{caught.value.__cause__}"


@pytest.mark.parametrize("kind", ["local", "lambda", "demanding", "growing"])
def test_exceptions_that_cannot_be_pickled(kind: str) -> None:
    (other, text), (own, _) = run_ranks(_fails_with, 2, kind)
    assert other == "RuntimeError"
    assert own in text
    assert "rank 1 raised" in text
    assert "on rank 1:\nTraceback" in text
    assert "raise " in text


def _gives_what_is_not_here() -> _NotHere:
    return _NotHere()


def test_run_ranks_says_whose_result_cannot_be_unpickled() -> None:
    with pytest.raises(RuntimeError, match="the result of rank 0 cannot be unpickled"):
        run_ranks(_gives_what_is_not_here, 1)


def _large() -> None:
    group = Group.current(timeout=LONG_S)
    size = 5_000_000
    result = group.all_gather(torch.full((size,), group.rank))
    assert [int(values.sum()) for values in result] == [r * size for r in range(group.world_size)]


def test_large_values_in_all_directions() -> None:
    run_ranks(_large, 3)


def _stopped(victim: int) -> str | None:
    group = Group.current(timeout=LONG_S)
    pids = group.all_gather(os.getpid())
    if group.rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    group.timeout = 2
    with pytest.raises(PeerLostError) as caught:
        group.barrier()
    with pytest.raises(PeerLostError):
        group.barrier()
    if group.rank == (victim + 1) % group.world_size:
        os.kill(pids[victim], signal.SIGKILL)
    return str(caught.value)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named(victim: int) -> None:
    results = run_ranks(_stopped, 3, victim, may_die=[victim])
    for rank in {0, 1, 2} - {victim}:
        assert results[rank].startswith(
            f"rank {victim} did not join within 2 s: Group.barrier (call 2); rank {victim} is "
            "stopped (pid "
        )


def _interrupted() -> bool:
    """Rank 0 gets Ctrl-C while it waits for rank 1."""
    group = Group.current(timeout=LONG_S, watch=False)
    pids = group.all_gather(os.getpid())
    start = time.monotonic()
    if group.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            group.barrier()
    else:
        interrupt_when_it_waits(group, pids[0])
    with pytest.raises(PeerLostError, match=r"rank 0 broke off Group.barrier \(call 2\): Keyb"):
        _barriers(group)
    return time.monotonic() - start < LONG_S / 2


def _barriers(group: Group) -> None:
    while True:
        group.barrier()


def test_ctrl_c_ends_a_wait_at_once() -> None:
    assert run_ranks(_interrupted, 2) == [True, True]


def _follows() -> str | None:
    """Rank 2 is killed, rank 1 ends by that; rank 0 comes when both are gone."""
    group = Group.current(timeout=LONG_S, watch=False)
    pids = group.all_gather(os.getpid())
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if group.rank == 1:
        try:
            group.barrier()
        except PeerLostError:
            raise SystemExit(1) from None
    while any(is_running(pid) for pid in pids[1:]):
        time.sleep(0.01)
    with pytest.raises(PeerLostError) as caught:
        group.barrier()
    return str(caught.value)


def test_the_rank_that_died_first_is_blamed() -> None:
    text = run_ranks(_follows, 3, may_die=[1, 2])[0]
    assert text.startswith("rank 2 died (pid ")


def _ends_early() -> str | None:
    group = Group.current(timeout=LONG_S)
    pids = group.all_gather(os.getpid())
    if group.rank == 1:
        return None
    while is_running(pids[1]):
        time.sleep(0.01)
    with pytest.raises(PeerLostError) as caught:
        group.barrier()
    return str(caught.value)


def test_a_rank_that_has_ended_well_interrupts_nobody() -> None:
    text = run_ranks(_ends_early, 2)[0]
    assert text.startswith("rank 1 left the group (pid ")
    assert text.endswith(") without joining Group.barrier (call 2)")


def _leaves_a_child() -> str | None:
    group = Group.current(timeout=LONG_S, watch=False)
    pids = group.all_gather(os.getpid())
    if group.rank == 1:
        child = os.fork()
        if child == 0:
            while is_running(pids[0]):
                time.sleep(0.01)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        group.barrier()
    assert time.monotonic() - start < LONG_S / 2
    return str(caught.value)


def test_a_child_that_outlives_a_rank_does_not_hide_its_death() -> None:
    assert run_ranks(_leaves_a_child, 2, may_die=[1])[0].startswith("rank 1 died (pid ")


def test_the_errors_come_out_of_pickle() -> None:
    for kind in (PeerLostError, CollectiveMismatchError):
        assert str(pickle.loads(pickle.dumps(kind("text")))) == "text"
