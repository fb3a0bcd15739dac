"""`peergraph.monitor` and `peergraph monitor`: lines on reads and waits of a running training."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import peergraph
from peergraph.cli.__main__ import main
from peergraph.memory import Group
from peergraph.profiling import EXCHANGE, count_bytes, profile_range
from peergraph.sampling import NeighborSampler
from peergraph.store import Store
from peergraph.testing import run_ranks
from tests.store.graphs import build, homogeneous_source


def read_batches(store: Store, count: int) -> None:
    sampler = NeighborSampler(store, [3], edge_ids=False)
    for seed in range(count):
        nodes = sampler.sample(torch.arange(20), seed)
        store.node_table("x").gather(next(iter(nodes.nodes.values())))


@pytest.mark.parametrize("plan", ["host", "replicated"])
def test_lines_name_tiers_memory_and_times(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    with build(homogeneous_source(), plan, device="cpu") as store:
        with peergraph.monitor(every=1e-9) as running:
            read_batches(store, 4)
            with profile_range(EXCHANGE):
                count_bytes(EXCHANGE, 1 << 20)
            text = str(running)
        assert store.measuring is None
        assert re.search(rf"batches/s \| rows 100 % {plan} \| read from ", text)
        assert ("own memory" if plan == "replicated" else "host") in text
        assert "other ranks" in text
        lines = [line for line in capsys.readouterr().err.splitlines() if "peergraph" in line]
        assert len(lines) > 4
        assert lines[-1].endswith("(in all)")
        assert any("sample" in line and f"100 % {plan}" in line for line in lines)
        running.stop()
        read_batches(store, 1)  # No longer counted, and nothing is written.
        assert capsys.readouterr().err == ""


def test_without_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with peergraph.monitor(every=None) as running:
        assert str(running) == "no time in Peergraph"
        with pytest.raises(RuntimeError, match="a monitor runs already"):
            peergraph.monitor()
        with build(homogeneous_source(), "host", device="cpu") as store:
            read_batches(store, 3)
            assert "rows 100 % host" in str(running)
            with pytest.raises(RuntimeError, match="measured already"), store.measure():
                pass
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="every must be a positive number of seconds"):
        peergraph.monitor(every=0)


def _read_all() -> str:
    group = Group.current("cpu")
    source = homogeneous_source() if group.rank == 0 else None
    with Store.build(source, plan="sharded", group=group) as store:
        with peergraph.monitor(every=None) as running:
            read_batches(store, 3)
            text = str(running)
        group.barrier()
    return text


def test_other_ranks_are_named() -> None:
    for rank, text in enumerate(run_ranks(_read_all, 2)):
        assert "rows 100 % sharded" in text
        assert re.search(rf"own memory .*/s, rank {1 - rank} .*/s", text)


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "from tests.integration.test_monitor import read_batches\n"
        "from tests.store.graphs import build, homogeneous_source\n"
        "with build(homogeneous_source(), 'host', device='cpu') as store:\n"
        "    read_batches(store, 3)\n"
        "print('arguments', sys.argv[1:])\n"
    )
    monkeypatch.setattr("peergraph.cli.run.find_spec", lambda _: None)
    monkeypatch.setattr("sys.argv", ["peergraph"])
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["monitor", "--every", "0.0001", str(script), "--epochs", "2"]) == 0
    out, err = capsys.readouterr()
    assert out == "arguments ['--epochs', '2']\n"
    assert "rows 100 % host" in err
    with pytest.raises(SystemExit):
        main(["monitor", "--every", "0", str(script)])
    assert "must be a positive number of seconds" in capsys.readouterr().err
