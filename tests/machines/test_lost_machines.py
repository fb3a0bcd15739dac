"""Ranks that are killed, one or a whole machine: the ranks of the others raise, naming them."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from peergraph import PeerLostError
from peergraph.memory import Group
from tests.machines.hosts import device_of_rank, run_on_hosts

# The limit after which a silent machine is lost.
LIMIT_S = 6.0
LONG_S = 60.0


def _lost(work: str, victims: list[int], device: str) -> tuple[str, float]:
    group = Group.current(device=device_of_rank(device), timeout=LIMIT_S)
    values = torch.ones(4, device=group.device)
    dist.all_reduce(values)
    pids: list[Any] = [None] * group.machines.world_size
    dist.all_gather_object(pids, os.getpid())
    if group.machines.rank in victims:
        if group.machines.rank == victims[0]:
            time.sleep(1.5)
            # All at once, itself last: a rank that outlives others of its machine names them.
            for victim in reversed(victims):
                os.kill(pids[victim], signal.SIGKILL)
        time.sleep(LONG_S)
    start = time.monotonic()
    try:
        while time.monotonic() < start + LONG_S:
            if work == "all_reduce":
                dist.all_reduce(values)
                values[0].item()
            time.sleep(0.01)
    except PeerLostError as error:
        return str(error), time.monotonic() - start
    except RuntimeError:
        # Gloo saw the end of the process: the error that names it comes soon.
        return _message_while_waiting(), time.monotonic() - start
    raise AssertionError("nothing was raised")


def _message_while_waiting() -> str:
    """Waits in Python, where an exception comes at any line."""
    end = time.monotonic() + LONG_S
    try:
        while time.monotonic() < end:
            time.sleep(0.01)
    except PeerLostError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def _check(results: list[Any], victims: list[int], name: str) -> None:
    for rank, result in enumerate(results):
        if rank not in victims:
            message, seconds = result
            assert name in message, message
            assert seconds < LIMIT_S + 10


@pytest.mark.parametrize(
    ("hosts", "work", "victims", "name"),
    [
        ("aabb", "all_reduce", [3], "rank 3 of machine 1 (b) died (pid "),
        ("aabb", "computing", [2, 3], "machine 1 (b; ranks 2, 3) is lost"),
        ("abbb", "all_reduce", [1, 2, 3], "machine 1 (b; ranks 1, 2, 3) is lost"),
        ("abbb", "computing", [0], "machine 0 (a; rank 0) is lost"),
    ],
)
def test_a_killed_rank_or_machine_is_named(
    hosts: str, work: str, victims: list[int], name: str
) -> None:
    results = run_on_hosts(_lost, hosts, work, victims, "cpu", may_die=victims)
    _check(results, victims, name)


@pytest.mark.gpus(2)
def test_a_killed_machine_is_named_on_gpus() -> None:
    results = run_on_hosts(_lost, "ab", "all_reduce", [1], "cuda", device="cuda", may_die=[0, 1])
    if results[0] is not None:  # else NCCL could not be interrupted, and the process has ended
        _check(results, [1], "machine 1 (b; rank 1) is lost")


def _fails(rank: int) -> str:
    group = Group.current(device="cpu", timeout=60)
    if group.machines.rank == rank:
        try:
            raise LookupError("on purpose")
        except LookupError:
            sys.exit(1)  # as torch.multiprocessing.spawn does
    return _message_while_waiting()


def _absent() -> str:
    group = Group.current(device="cpu", timeout=2)
    if group.machines.index == 1:
        time.sleep(3)
        return ""
    with pytest.raises(PeerLostError) as raised:
        group.all_gather_machines(1)
    return str(raised.value)


def test_an_exception_on_another_machine_is_named() -> None:
    messages = run_on_hosts(_fails, "aab", 2, may_die=[2])
    for message in messages[:2]:
        assert "rank 2 of machine 1 (b) died (pid " in message
        assert "LookupError: on purpose" in message


def test_a_machine_that_does_not_come_is_named() -> None:
    messages = run_on_hosts(_absent, "aab")
    assert any("machine 1 (b; rank 2) did not join within 2 s" in text for text in messages[:2])


def _ends_early() -> float:
    """Machine 1 ends in peace; its silence is no loss."""
    group = Group.current(device="cpu", timeout=2)
    start = time.monotonic()
    if group.machines.index == 0:
        time.sleep(4.5)
    return time.monotonic() - start


def test_a_machine_that_ends_well_is_not_lost() -> None:
    assert run_on_hosts(_ends_early, "aab")[0] > 4
