"""The same program under torchrun, under torch.multiprocessing.spawn and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing

from peergraph.memory import Group
from tests.scripts import run_python

PROGRAM = """
import sys, torch
from peergraph.memory import Group, Table, Tiers
group = Group.current(device="cpu", timeout=60)
table = Table.create((10,), torch.int64, Tiers(sharded=10), group)
if group.rank == 0:
    table.load(torch.arange(10))
group.barrier()
assert table.read().tolist() == list(range(10))
table.close()
open(f"{sys.argv[1]}/rank{group.rank}of{group.world_size}", "w")
"""


def test_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    results = tmp_path / "results"
    results.mkdir()
    done = run_python(program, results)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run_python(*command, program, results, timeout_s=250)
    assert done.returncode == 0, done.stderr
    expected = ["rank0of1", "rank0of2", "rank1of2"]
    assert sorted(path.name for path in results.iterdir()) == expected


TRAINING = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import peergraph

dist.init_process_group("gloo")

def train():
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(3, 2)).sum().backward()

train()
dist.destroy_process_group()
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not [name for name in threads if "gloo" in name], threads
"""


def test_no_thread_of_gloo_outlives_its_process_group(tmp_path: Path) -> None:
    """Such a thread aborts the process where it works while the interpreter shuts down."""
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    done = run_python(program, ranks=1)
    assert done.returncode == 0, done.stderr


def _spawned(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    group = Group.current(device="cpu", timeout=60)
    assert group.all_gather(rank) == [0, 1]
    dist.destroy_process_group()


def test_multiprocessing_spawn(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_spawned, (str(tmp_path / "store"),), nprocs=2)
