"""Ranks that each see one GPU of their own, as ``srun --gpus-per-task`` and Ray start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts import free_port

PROGRAM = """
import os, sys
import pytest, torch
import peergraph
from peergraph import optim
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.store import Store
from tests.fullgraph.test_copy_transport import check_copies
from tests.multirank.test_embedding import _every_plan_and_optimizer
from tests.multirank.test_sampling import same_everywhere

assert torch.cuda.device_count() == 1
group = Group.current(timeout=100)
assert group.device == torch.device("cuda", 0)
access = PeerAccess.of(group)
assert [device is None for device in access.devices] == [rank != group.rank for rank in range(2)]
if sys.argv[1] == "refused":
    # There is no GPU on which this process could write the other rank's copy.
    table = Table.create((8,), torch.int64, Tiers(replicated=4, host=4), group)
    with pytest.raises(RuntimeError, match="does not see the GPU of rank"):
        table.load(torch.arange(8))
    group.barrier()
    table.close()
else:
    assert access.is_full
    same_everywhere("mixed", "cuda")
    _every_plan_and_optimizer()
    check_copies()
group.barrier()
open(f"{sys.argv[2]}/{group.rank}", "w")
"""


def _run_on_own_gpus(tmp_path: Path, case: str, **variables: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else ["0", "1"]
    port = str(free_port())
    processes = []
    for rank in range(2):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "CUDA_VISIBLE_DEVICES": gpus[rank],
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, str(program), case, str(tmp_path)]
        processes.append(
            subprocess.Popen(
                command,
                env=os.environ | own | variables,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        errors = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        lines = [(error.strip().splitlines() or [""])[-1] for error in errors]
        pytest.fail("; ".join(lines) + "\n" + "\n".join(errors), pytrace=False)
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}


@pytest.mark.gpus(2)
def test_gpus_with_peer_access(tmp_path: Path) -> None:
    _run_on_own_gpus(tmp_path, "all")


@pytest.mark.gpus(2)
def test_gpus_without_peer_access(tmp_path: Path) -> None:
    _run_on_own_gpus(tmp_path, "refused", PEERGRAPH_REFUSED_PAIRS="all", NCCL_P2P_DISABLE="1")
