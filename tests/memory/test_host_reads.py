"""By which way a GPU reads rows of the host: the choice, and that both give the same rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import peergraph
from peergraph.memory import Group, Table, measure_topology
from peergraph.memory.device.machine_cache import host_reads_file
from peergraph.memory.table import access
from peergraph.memory.table.host_read_speeds import SPARSE_BYTES, Speeds, save_speeds, staged_share
from peergraph.testing import run_ranks
from tests.memory.tables import plain_gather, random_ids, random_rows, same_bits, split, table_of
from tests.named_case import named_cases
from tests.pairwise import pairwise


def gather_and_wait(table: Table, ids: torch.Tensor) -> None:
    table.gather(ids)
    peergraph.synchronize()


def record(table: Table, ids: torch.Tensor, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.gather(ids, out)
    return graph


def test_the_fastest_way_by_width(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "rates.json"
    assert staged_share(file, 512, 1) == 0
    close = {
        64: Speeds(10.0, 50.0, 45.0),
        512: Speeds(50.0, 20.0, 50.0),
        1024: Speeds(50.0, 54.0, 54.5),
        2048: Speeds(30.0, 20.0, 40.0),
    }
    save_speeds(file, close, {})
    widths = (4, 64, 100, 512, 600, 1024, 2048, 9000)
    chosen = {width: staged_share(file, width, 1) for width in widths}
    assert [chosen[width] for width in widths] == [1, 1, 1, 0, 0, 0, 0.4, 0.4]
    save_speeds(
        file, {64: Speeds(10.0, 5.0, 8.0), 512: Speeds(50.0, 60.0, 10.0)}, {512: close[512]}
    )
    assert staged_share(file, 64, 1) == 0
    assert staged_share(file, 512, 1) == 1
    # In large tables rows lie far apart.
    assert staged_share(file, 512, SPARSE_BYTES) == 0
    assert [path.name for path in file.parent.iterdir()] == ["rates.json"]


@named_cases(
    "text",
    [
        "",
        "[]",
        "{1",
        '{"a": [1, 2, 3]}',
        '{"1": 2}',
        '[{"1": [1, 2]}, {}]',
        "[{}]",
        '[{"1": 2}, {}]',
        '[{"1": [0, 0, 0]}, {}]',
        '[{"1": [1, NaN, 1]}, {}]',
        '[{"0": [1, 9, 1]}, {}]',
        '[{"a": [1, 9, 1]}, {}]',
        f'[{{"1": [1, 1{"0" * 400}, 1]}}, {{}}]',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    assert staged_share(file, 512, 1) == 0


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "rates.json").mkdir()
    assert staged_share(tmp_path / "rates.json", 512, 1) == 0
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="cannot be kept: .*file"):
        save_speeds(tmp_path / "file" / "rates.json", {64: Speeds(10.0, 40.0, 20.0)}, {})


def force(way: str) -> Callable[..., float]:
    """A choice for :func:`staged_share`."""
    share = {"kernel": 0.0, "staged": 1.0, "both": 0.5}[way]
    return lambda *_: share


@pytest.mark.gpus(1)
@pytest.mark.parametrize(
    ("way", "kind", "width"),
    pairwise(["kernel", "staged", "both"], ["host", "mixed", "all"], [3, 128]),
)
def test_same_rows(way: str, kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "staged_share", force(way))
    rows = random_rows((3001, width), torch.float32)
    order = torch.randperm(3001).cuda()
    table = table_of(rows, split(3001, kind), Group.current(device="cuda"), order=order)
    for count in (1, 4095, 4096, 100_000):
        ids = random_ids(3001, (count,), torch.int32)
        assert same_bits(table.gather(ids.cuda()), plain_gather(rows, ids))
    changed = random_ids(3001, (5000,), torch.int64).unique()
    values = random_rows((changed.numel(), width), torch.float32, seed=1)
    rows[changed] = values
    table.scatter(changed.cuda(), values.cuda())
    assert same_bits(table.gather(torch.arange(3001).repeat(2)), torch.cat([rows, rows]))
    bad = torch.full((5000,), 7, device="cuda")
    bad[4999] = 3001
    with pytest.raises(IndexError, match=r"ids\[4999\] = 3001 is out of range"):
        gather_and_wait(table, bad)
    table.close()


def _on_each_gpu(way: str) -> None:
    setattr(access, "staged_share", force(way))  # noqa: B010
    group = Group.current(timeout=60)
    rows = random_rows((5003, 33), torch.float32)
    for kind in ("host", "mixed", "all"):
        table = table_of(rows, split(5003, kind), group)
        table.gather(torch.arange(9))
        elsewhere = torch._C._cuda_hasPrimaryContext(1 - group.rank)
        for turn in range(3):
            ids = random_ids(5003, (20_000,), torch.int32, seed=2 * turn + group.rank)
            assert same_bits(table.gather(ids.to(group.device)), plain_gather(rows, ids))
        # The threads have used no other GPU: a context takes half a gigabyte there.
        assert torch._C._cuda_hasPrimaryContext(1 - group.rank) == elsewhere
        table.close()


@pytest.mark.gpus(2)
@pytest.mark.parametrize("way", ["staged", "both"])
def test_on_each_gpu(way: str) -> None:
    run_ranks(_on_each_gpu, 2, way, device="cuda")


@pytest.mark.gpus(1)
@pytest.mark.parametrize("kind", ["mixed", "all"])
def test_in_a_cuda_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels read: a graph cannot wait for the CPU, and so not for a disk."""
    monkeypatch.setattr(access, "staged_share", force("staged"))
    rows = random_rows((3001, 8), torch.float32)
    table = table_of(rows, split(3001, kind), Group.current(device="cuda"))
    ids = random_ids(3001, (5000,), torch.int64).cuda()
    out = torch.empty(5000, 8, device="cuda")
    table.gather(ids, out)
    torch.cuda.synchronize()
    if kind == "all":
        with pytest.raises(NotImplementedError, match="a CUDA graph cannot gather"):
            record(table, ids, out)
    else:
        graph = record(table, ids, out.zero_())
        graph.replay()
        assert same_bits(out, plain_gather(rows, ids.cpu()))
    table.close()


@pytest.mark.gpus(1)
def test_measured_with_the_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    group = Group.current(device="cuda")
    measure_topology(group)
    file = host_reads_file(group.device, group.world_size)
    assert file.parent == tmp_path / "peergraph"
    print(file.read_text())
    assert 0 <= staged_share(file, 512, 1) <= 1
    assert len(json.loads(file.read_text())[0]["512"]) == 3
