"""Ranks that end in the middle of something: the waits of the others end, naming who died."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from peergraph import PeerLostError
from peergraph.memory import Group, SharedRegion
from peergraph.memory.group import handshake
from peergraph.memory.group.rank_names import RankNames
from peergraph.sampling import NeighborSampler
from peergraph.store import EDGE, NODE, EdgeSource, GraphSource, Store
from peergraph.testing import run_ranks
from tests.multirank.gpu_memory import check_freed
from tests.multirank.lost_ranks import check_named

# Whatever waits longer than this has not noticed.
LONG_S = 100.0


def _dies(how: str) -> None:
    if how == "exception":
        try:
            raise LookupError("on purpose")
        except LookupError:
            sys.exit(1)  # as torch.multiprocessing.spawn does
    if how == "exit":
        raise SystemExit(3)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(LONG_S)


def _all_reduces(group: Group) -> Callable[[], None]:
    def all_reduce() -> None:
        values = torch.ones(4, device=group.device)
        dist.all_reduce(values)
        values[0].item()

    def work() -> None:
        while True:
            all_reduce()

    # Makes the communicator. If a rank dies meanwhile, the others may have to end with a message.
    all_reduce()
    return work


def _trains(group: Group) -> Callable[[], None]:
    model = DistributedDataParallel(torch.nn.Linear(4, 4).to(group.device))

    def work() -> None:
        while True:
            loss = model(torch.ones(2, 4, device=group.device)).sum()
            loss.backward()
            loss.item()

    return work


def _waits_at_barriers(group: Group) -> Callable[[], None]:
    def work() -> None:
        while True:
            group.barrier()

    return work


def _store(group: Group) -> Store:
    source = None
    if group.rank == 0:
        edges = EdgeSource(torch.randint(100, (2, 500)), None)
        source = GraphSource({NODE: 100}, {EDGE: edges}, {NODE: {"x": torch.rand(100, 4)}}, {})
    plan = "sharded" if group.device.type == "cuda" else "host"
    return Store.build(source, group=group, plan=plan)


def _builds(group: Group) -> Callable[[], None]:
    def work() -> None:
        while True:
            _store(group).close()

    return work


def _saves(group: Group, folder: str) -> Callable[[], None]:
    store = _store(group)

    def work() -> None:
        for i in range(10_000):
            store.save(f"{folder}/{i}")

    return work


def _closes(group: Group) -> Callable[[], None]:
    stores = [_store(group) for _ in range(20)]

    def work() -> None:
        for store in stores:
            store.close()
        group.barrier()

    return work


def _samples(group: Group) -> Callable[[], None]:
    """What is one-sided waits for nobody: the watcher interrupts it."""
    store = _store(group)
    sampler = NeighborSampler(store, [3, 3])

    def work() -> None:
        while True:
            store.node_table("x").gather(sampler.sample(torch.arange(10), 1).nodes[NODE])

    return work


def _lost_in(stage: str, victim: int, how: str, folder: str, ballast: int = 0) -> tuple[str, float]:
    group = Group.current(timeout=LONG_S)
    if ballast:
        SharedRegion.create(ballast, group)
    work = {
        "all_reduce": _all_reduces,
        "training": _trains,
        "barrier": _waits_at_barriers,
        "build": _builds,
        "save": lambda group: _saves(group, folder),
        "close": _closes,
        "sampling": _samples,
    }[stage](group)
    if group.rank == victim:
        if stage == "close":
            _dies(how)
        signal.signal(signal.SIGALRM, lambda *_: _dies(how))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    start = time.monotonic()
    return _message_of(work), time.monotonic() - start


def _message_of(work: Callable[[], object]) -> str:
    """The PeerLostError that ends the work, or follows at once where torch saw the end first."""
    try:
        try:
            work()
        except RuntimeError as error:
            if isinstance(error, PeerLostError):
                raise
            deadline = time.monotonic() + LONG_S
            while time.monotonic() < deadline:
                time.sleep(0.001)
    except PeerLostError as error:
        return str(error)
    raise AssertionError("no rank was lost")


@pytest.mark.parametrize(
    ("stage", "ranks", "victim", "how"),
    [
        ("all_reduce", 4, 2, "SIGKILL"),
        ("training", 3, 1, "SIGKILL"),
        ("barrier", 3, 0, "SIGKILL"),
        ("build", 2, 0, "SIGKILL"),
        ("save", 2, 1, "SIGKILL"),
        ("close", 3, 1, "SIGKILL"),
        ("sampling", 2, 0, "SIGKILL"),
        ("training", 2, 0, "exception"),
        ("barrier", 3, 1, "SIGINT"),
        ("sampling", 3, 1, "exit"),
        ("close", 2, 0, "exit"),
        ("save", 2, 1, "exception"),
        ("build", 2, 1, "SIGINT"),
    ],
)
def test_a_death_ends_every_wait_and_is_named(
    tmp_path: Path, stage: str, ranks: int, victim: int, how: str
) -> None:
    results = run_ranks(_lost_in, ranks, stage, victim, how, str(tmp_path), may_die=[victim])
    check_named(results, victim, LONG_S / 2)


def _check_on_gpus(ranks: int, stage: str, victim: int, folder: str) -> None:
    torch.cuda.init()
    before = [torch.cuda.mem_get_info(i)[0] for i in range(ranks)]
    # So much that whatever else runs on the GPUs meanwhile makes no difference.
    ballast = min(before) // 16  # many tests do this at once
    results = run_ranks(
        _lost_in,
        ranks,
        stage,
        victim,
        "SIGKILL",
        folder,
        ballast,
        device="cuda",
        may_die=[victim],
    )
    check_named(results, victim, LONG_S / 2)
    for i, free in enumerate(before):
        check_freed(i, free - ballast + 1)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("stage", ["all_reduce", "training", "sampling", "build", "close", "save"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_of_one_of_two_gpus(tmp_path: Path, stage: str, victim: int) -> None:
    _check_on_gpus(2, stage, victim, str(tmp_path))


@pytest.mark.gpus(4)
@pytest.mark.parametrize("stage", ["all_reduce", "training", "sampling", "build", "close", "save"])
def test_a_death_of_one_of_four_gpus(tmp_path: Path, stage: str) -> None:
    _check_on_gpus(4, stage, 2, str(tmp_path))


def _gives_up_and_ends() -> str:
    """Rank 0 waits for a second and ends without an error; rank 1 is in no collective."""
    group = Group.current(timeout=1.0)
    try:
        if group.rank == 0:
            group.barrier()
        deadline = time.monotonic() + LONG_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
    except PeerLostError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.timeout(60)
def test_a_rank_that_gave_up_and_ended_is_noticed_outside_of_collectives() -> None:
    messages = run_ranks(_gives_up_and_ends, 2, timeout_s=50)
    assert all("rank 1 did not join within 1 s" in message for message in messages), messages


def _makes_a_communicator(victim: int, errors: str) -> str:
    group = Group.current(timeout=LONG_S)
    if group.rank != victim:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    store = dist.distributed_c10d._get_default_store()
    keys = store.num_keys()
    group.barrier()
    if group.rank == victim:
        while store.num_keys() == keys:  # until rank 0 has begun
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return _message_of(lambda: dist.all_reduce(torch.ones(4, device=group.device)))


@pytest.mark.gpus(2)
def test_a_wait_that_nothing_ends_ends_the_process(tmp_path: Path) -> None:
    """NCCL gives no way out of making a communicator with a rank that has died, or a late one."""
    errors = tmp_path / "errors"
    message = run_ranks(_makes_a_communicator, 2, 1, str(errors), device="cuda", may_die=[0, 1])[0]
    assert "rank 1 died (pid " in (message or errors.read_text())


def _dies_while_joining(stage: str) -> str:
    """Rank 1 has published its address, or has connected to rank 0, when it dies."""
    if dist.get_rank() == 1:
        dies_in = {"before it connects": "connect", "before it says hello": "_send"}[stage]
        setattr(handshake.Handshake, dies_in, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    start = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        Group.current(timeout=LONG_S)
    assert time.monotonic() - start < LONG_S / 2
    # Neither of the others ends before both have noticed.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"has noticed/{dist.get_rank()}", "")
    store.wait(["has noticed/0", "has noticed/2"])
    return str(caught.value)


@pytest.mark.parametrize("stage", ["before it connects", "before it says hello"])
def test_a_death_while_joining_is_named_at_once(stage: str) -> None:
    results = run_ranks(_dies_while_joining, 3, stage, may_die=[1])
    assert all(text.startswith("rank 1 died (pid ") for text in results[::2]), results


def test_a_rank_that_ends_between_the_connection_and_the_hello(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending, mine = handshake.Listener(), handshake.Listener()
    process_behind = handshake._process_behind

    def ends(connected: socket.socket) -> tuple[int, int]:
        process = process_behind(connected)
        ending.close()
        return process

    monkeypatch.setattr(handshake, "_process_behind", ends)
    joining = handshake.Handshake(
        1, [ending.endpoint, mine.endpoint], mine, RankNames((0, 1), None)
    )
    with pytest.raises(PeerLostError, match="rank 0 died"):
        joining.connect(LONG_S, time.monotonic() + LONG_S)
    mine.close()
