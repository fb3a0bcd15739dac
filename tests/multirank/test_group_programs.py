"""Scripts of several ranks, as users start them: what is shown where one dies, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.scripts import run_python

_BEGIN = """
import os, signal, sys, time, torch
import torch.distributed as dist
from peergraph.memory import Group
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
group = Group.current(timeout=60)
pids = group.all_gather(os.getpid())
"""

_DIES = """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    dist.all_reduce(torch.ones(4))
"""

_RAISES = """
if rank == 1:
    raise LookupError("on purpose")
while True:
    dist.all_reduce(torch.ones(4))
"""

_ENDS_EARLY = """
if rank == 0:
    while os.path.exists(f"/proc/{pids[1]}/fd/0"):
        time.sleep(0.01)
    for _ in range(100):
        time.sleep(0.01)
    print("finished")
"""


def _run(program: str, folder: Path, begin: str = _BEGIN) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of both ranks, which are new interpreters."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", begin + program, str(folder / "store")]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=250) for process in ranks]
        return [(p.returncode, *text) for p, text in zip(ranks, texts, strict=True)]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


# The watcher begins to abort communicators after the main thread has raised. The calls of torch for
# it come back while the interpreter shuts down, after functions of other libraries.
_SHUTS_DOWN_SLOWLY = """
import atexit, time
atexit.register(time.sleep, 1.0)
"""
_ABORTS_LATE = """
from datetime import timedelta
from peergraph.memory.group import alarm, torch_waits

class LateAbort:
    def abort(self):
        store = dist.TCPStore("127.0.0.1", 0, 1, True)
        for _ in range(400):
            try:
                store.wait(["never"], timedelta(milliseconds=5))
            except dist.DistStoreError:
                pass

alarm.give_up_waits = lambda: time.sleep(0.5)
torch_waits._nccl_backends = lambda: [LateAbort()]
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    time.sleep(0.01)
"""

_SHOW = "if rank == 0: print(pids[1], flush=True)\n"


def test_what_is_shown_where_a_rank_raises(tmp_path: Path) -> None:
    (code, out, errors), _ = _run(_SHOW + _RAISES, tmp_path)
    assert code == 1
    assert f"PeerLostError: rank 1 died (pid {out.strip()}) of LookupError: on purpose" in errors


def test_calls_that_abort_communicators_do_not_abort_the_process(tmp_path: Path) -> None:
    (code, _, errors), _ = _run(_ABORTS_LATE, tmp_path, _SHUTS_DOWN_SLOWLY + _BEGIN)
    assert "PeerLostError: rank 1 died" in errors
    assert code == 1, errors[-2000:]


def test_what_is_shown_where_a_rank_is_killed(tmp_path: Path) -> None:
    done = run_python("-c", _BEGIN + _SHOW + _DIES, tmp_path / "store", ranks=2)
    assert done.returncode == 1
    assert f"PeerLostError: rank 1 died (pid {done.stdout.strip()})" in done.stderr


def test_ranks_may_end_at_different_times(tmp_path: Path) -> None:
    (first, out, errors), (second, _, _) = _run(_ENDS_EARLY, tmp_path)
    assert (first, second, out) == (0, 0, "finished\n")
    assert "PeerLostError" not in errors
