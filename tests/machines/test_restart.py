"""Elastic restarts on two machines: the training is that of a run without a failure.

Agents and ranks are forked; tests/multirank/test_launchers.py starts them by the command torchrun.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.scripts import Finished, free_port, run_python
from tests.shared_memory import shared_files

from .restarted_training import __name__ as program


@pytest.mark.timeout(440)
def test_a_killed_rank_comes_back_with_the_same_batches(tmp_path: Path) -> None:
    files = shared_files()
    endpoint = f"127.0.0.1:{free_port()}"
    started = threading.Event()

    def run(host: str, ranks: int) -> Finished:
        command = ["-m", program, endpoint, host, str(ranks), tmp_path]
        return run_python(*command, timeout_s=400, watch=lambda pid, output: started.set())

    with ThreadPoolExecutor() as machines:
        first = machines.submit(run, "host-a", 1)
        started.wait(60)  # Machines are numbered by the ids of these processes.
        second = machines.submit(run, "host-b", 2)
        ends = [first.result(), second.result()]
    logs = "".join(end.stderr[-5000:] for end in ends)
    assert [end.returncode for end in ends] == [0, 0], logs
    assert all((tmp_path / f"rank{rank}").exists() for rank in range(3)), logs
    assert shared_files() <= files
