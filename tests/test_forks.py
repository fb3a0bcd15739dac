"""Children that are forked after torch has computed in several threads do not wait for these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In the child: operations of torch, a saved store and a sampler, whose results are the parent's.
_FORK = """
import os, signal, sys
import torch
{before}
import peergraph
from peergraph.sampling import NeighborSampler
from peergraph.store import EdgeSource, GraphSource, Store

torch.set_num_threads(3)
n = 100_000
edges = torch.randint(0, n, (2, 8 * n))
x = torch.arange(64.0 * n).view(n, 64)
source = GraphSource.homogeneous(n, EdgeSource(coo=edges), node_tables={{"x": x}})
with Store.build(source, device="cpu") as store:
    store.save(sys.argv[1])

def results(generations):
    with Store.load(sys.argv[1], device="cpu") as store:
        ids = torch.arange(0, n, 2)
        rows = store.node_table("x").gather(ids)
        assert torch.equal(rows, x[::2])
        sample = NeighborSampler(store, [10, 5]).sample(ids, seed=1)
        total = (rows.sum() + sum(col.sum() for col in sample.col.values())).item()
        if generations:
            total += forked(generations - 1)
        return total

def forked(generations):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm({deadline_s})
        os.write(writes, str((results(generations), torch.get_num_threads())).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    total, threads = eval(os.read(reads, 100))
    assert threads == {threads}, threads
    return total

one = results(0)
assert forked(1) == 2 * one
assert results(0) == one
assert torch.get_num_threads() == 3
"""
_DEADLINE_S = 100
# The C library without the function that ends OpenMP's threads, as of old versions of libgomp.
_WITHOUT_PAUSE = """
import ctypes
class Runtime:
    GOMP_parallel = None
library = ctypes.CDLL
ctypes.CDLL = lambda name, *args, **kw: Runtime() if name is None else library(name, *args, **kw)
"""


@pytest.mark.parametrize(("before", "threads"), [("", 3), (_WITHOUT_PAUSE, 1)])
def test_forked_after_use_of_threads(before: str, threads: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_FORK.format(before=before, threads=threads, deadline_s=_DEADLINE_S))
    process = subprocess.run(
        [sys.executable, program, tmp_path / "store"],
        capture_output=True,
        text=True,
        timeout=2 * _DEADLINE_S,
    )
    assert process.returncode == 0, process.stderr
