"""Ranks that die or never come: the others raise in time, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory import Group, SharedRegion, Table, Tiers
from peergraph.testing import ranks, run_ranks
from tests.multirank.gpu_memory import check_freed
from tests.multirank.impatient import impatient_group

# Long enough to tell a rank that was seen to die from one that did not come in time.
LONG_S = 60.0
# Between a barrier and the next collective of two ranks on a busy machine passes less.
SHORT_S = 3.0


def _lost(collective: Any, *args: Any) -> tuple[str, float]:
    """The message with which a collective fails, and how long that took."""
    start = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        collective(*args)
    return str(caught.value), time.monotonic() - start


def _one_rank_dies(victim: int, how: int | None) -> tuple[str, float]:
    group = Group.current(timeout=LONG_S, watch=False)
    table = Table.create((100, 4), torch.float32, Tiers(30, 30, 40), group)
    if group.rank == victim:
        if how is None:
            raise SystemExit(3)
        os.kill(os.getpid(), how)
        time.sleep(LONG_S)
    result = _lost(group.barrier)
    # The memory that is left can still be used and released.
    assert table.read().shape == (100, 4)
    assert _lost(table.close)[1] < LONG_S / 2
    return result


@pytest.mark.parametrize(
    ("victim", "how"),
    [(0, signal.SIGKILL), (2, signal.SIGKILL), (1, signal.SIGTERM), (0, None), (1, None)],
)
def test_a_dead_rank_is_named(victim: int, how: int | None) -> None:
    results = run_ranks(_one_rank_dies, 3, victim, how, may_die=[victim])
    for rank, result in enumerate(results):
        if rank == victim:
            assert result is None
            continue
        message, seconds = result
        assert f"rank {victim} died (pid " in message
        assert seconds < LONG_S / 2


def _one_rank_is_late(victim: int) -> tuple[str, str] | None:
    group = impatient_group(SHORT_S)
    if group.rank == victim:
        dist.barrier()
        return None
    first, seconds = _lost(group.all_gather, 1)
    assert seconds < LONG_S / 2
    # Later collectives fail at once.
    again, seconds = _lost(SharedRegion.create, 8, group)
    assert seconds < SHORT_S
    dist.barrier()
    return first, again


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_does_not_come_is_named(victim: int) -> None:
    results = run_ranks(_one_rank_is_late, 3, victim)
    for rank in {0, 1, 2} - {victim}:
        assert all(f"rank {victim} did not join within 3 s" in text for text in results[rank])


def _one_rank_never_joins() -> str | None:
    dist.barrier()
    message = None
    if dist.get_rank() != 1:
        message, seconds = _lost(Group.current, None, SHORT_S)
        assert seconds < LONG_S / 2
    dist.barrier()
    return message


def test_a_rank_that_never_joins_is_named() -> None:
    results = run_ranks(_one_rank_never_joins, 3)
    assert results == ["rank 1 did not join within 3 s", None, "rank 1 did not join within 3 s"]


def _all_die(device: str, num_bytes: int) -> None:
    group = Group.current(device=device, timeout=LONG_S, watch=False)
    SharedRegion.create(num_bytes, group)
    SharedRegion.create(1 << 20, group, "cpu")
    os.kill(os.getpid(), signal.SIGKILL)


def test_nothing_is_left_when_all_ranks_are_killed() -> None:
    assert run_ranks(_all_die, 2, "cpu", 1 << 20, may_die=[0, 1]) == [None, None]


@pytest.mark.alone
@pytest.mark.gpus(1)
def test_nothing_is_left_when_all_ranks_on_a_gpu_are_killed() -> None:
    torch.cuda.init()
    free_before = torch.cuda.mem_get_info(0)[0]
    # So much that what other users of the GPU do meanwhile makes no difference.
    num_bytes = free_before // 4
    run_ranks(_all_die, 2, "cuda:0", num_bytes, device="cuda", may_die=[0, 1])
    check_freed(0, free_before - num_bytes + 1)


def _torchrun_rank_that_never_comes() -> tuple[str, float]:
    dist.destroy_process_group()
    os.environ.update(RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    return _lost(Group.current, "cpu", 2.0)


def test_torchrun_environment_with_a_rank_that_never_comes() -> None:
    ((message, seconds),) = run_ranks(_torchrun_rank_that_never_comes, 1)
    assert "did not all join within 2 s" in message
    assert seconds < LONG_S / 2


def _torchrun_alone() -> tuple[int, int, str]:
    dist.destroy_process_group()
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    group = Group.current("cpu")
    assert dist.is_initialized()
    return group.rank, group.world_size, str(group.device)


def test_torchrun_environment() -> None:
    assert run_ranks(_torchrun_alone, 1) == [(0, 1, "cpu")]


def _new_process_group(file: str) -> list[int]:
    rank = dist.get_rank()
    sizes = [Group.current().world_size]
    Group.current().barrier()
    dist.destroy_process_group()
    sizes.append(Group.current().world_size)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LONG_S),
    )
    sizes.append(Group.current().world_size)
    Group.current().barrier()
    return sizes


def test_the_group_follows_the_process_group(tmp_path: Path) -> None:
    assert run_ranks(_new_process_group, 2, str(tmp_path / "store")) == [[2, 1, 2]] * 2


def _fails_in_rank_one() -> None:
    if dist.get_rank() == 1:
        raise LookupError("on purpose")


def test_run_ranks_reports_the_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rank 1 raised:.*LookupError: on purpose"):
        run_ranks(_fails_in_rank_one, 2)


def _loses_the_other_rank(seconds: float) -> None:
    if dist.get_rank() == 0:
        raise RuntimeError("Connection closed by peer")
    time.sleep(seconds)
    raise LookupError("on purpose")


def test_run_ranks_reports_the_cause_of_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_CAUSE_WAIT_S", 60.0)
    with pytest.raises(RuntimeError, match="^rank 1 raised:") as caught:
        run_ranks(_loses_the_other_rank, 2, 0.3)
    assert "LookupError: on purpose" in str(caught.value)
    # The other rank need not end at all.
    monkeypatch.setattr(ranks, "_CAUSE_WAIT_S", 0.1)
    with pytest.raises(RuntimeError, match="(?s)^rank 0 raised:.*Connection closed by peer$"):
        run_ranks(_loses_the_other_rank, 2, 60.0)


def _sleeps() -> None:
    time.sleep(60)


def test_run_ranks_has_a_deadline() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0\] took more than 1 s"):
        run_ranks(_sleeps, 1, timeout_s=1)


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_run_ranks_reports_a_death() -> None:
    with pytest.raises(RuntimeError, match="rank 0 was ended by SIGKILL"):
        run_ranks(_dies, 1)
