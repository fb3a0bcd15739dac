"""A save that fails or is killed raises on every rank and leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from peergraph.memory import Group
from peergraph.store import EdgeSource, GraphSource, Store
from peergraph.store.disk import atomic_folder as new_folder
from peergraph.store.disk import save_store
from peergraph.testing import run_ranks
from tests.named_case import named_case
from tests.store.graphs import homogeneous_source
from tests.store.same_graph import assert_same_graph


def large_source() -> GraphSource:
    """One table of 4 MB among small files."""
    coo = torch.zeros((2, 4), dtype=torch.int64)
    return GraphSource.homogeneous(1000, EdgeSource(coo=coo), {"x": torch.ones(1000, 1000)})


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.build(homogeneous_source(), plan="host", device="cpu") as built:
        yield built


def _save_with_small_files(folder: str) -> None:
    """Of a child process: no file may have more than 1 MB."""
    group = Group.current(device="cpu")
    source = large_source() if group.rank == 0 else None
    with Store.build(source, plan="host", group=group) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="File too large"):
            store.save(folder)
        assert os.listdir(Path(folder).parent) == []


def test_no_room_on_any_rank(tmp_path: Path) -> None:
    run_ranks(_save_with_small_files, 2, str(tmp_path / "graph"))


@pytest.mark.parametrize("function", ["posix_fallocate", "pwrite", "fsync"])
@pytest.mark.parametrize("call", [1, 4, -1])
def test_a_full_disk_leaves_nothing(
    store: Store, function: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call finds the disk full; the last one is found by a save that succeeds."""
    real = getattr(os, function)
    calls = 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    limit = 0
    monkeypatch.setattr(os, function, failing)
    store.save(tmp_path / "first")
    # The last call of fsync is of the parent, when all is done.
    limit = call if call > 0 else calls - (function == "fsync")
    calls = 0
    with pytest.raises(OSError, match="No space left on device"):
        store.save(tmp_path / "graph")
    assert os.listdir(tmp_path) == ["first"]


def test_writes_that_are_cut_short_go_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: real(fd, data[: max(1, len(data) // 2)], at)
    )
    store.save(tmp_path / "graph")
    monkeypatch.undo()
    with Store.load(tmp_path / "graph", device="cpu") as again:
        assert_same_graph(again, homogeneous_source())


def test_a_file_system_without_reservations(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*args: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    store.save(tmp_path / "graph")
    Store.load(tmp_path / "graph", device="cpu").close()


def test_a_real_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        with Store.build(large_source(), plan="host", device="cpu") as store:
            with pytest.raises(OSError, match="No space left on device"):
                store.save(disk / "graph")
            assert os.listdir(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


_KILLED_WHILE_SAVING = """
import os, signal, sys
from peergraph.store import Store
from tests.store.graphs import homogeneous_source

store = Store.build(homogeneous_source(), plan="host", device="cpu")
real = os.fsync
calls = 0
def stop(fd):
    global calls
    calls += 1
    if calls == 3:
        print("saving", flush=True)
        sys.stdin.read()
    real(fd)
os.fsync = stop
store.save(sys.argv[1])
"""


def test_what_a_killed_save_left_is_removed_by_the_next(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "graph"
    child = subprocess.Popen(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"saving\n"
        left = os.listdir(tmp_path)
        assert [name.rpartition("-")[0] for name in left] == [f"graph.part-{child.pid}"]
        # While it lives, its folder is its own.
        store.save(folder)
        assert sorted(os.listdir(tmp_path)) == sorted(["graph", *left])
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    (tmp_path / "graph.part-mine").mkdir()
    (tmp_path / "graph.part-99").touch()
    (tmp_path / "graph.part-98").symlink_to(tmp_path / "graph")
    (tmp_path / "graph.part-97").mkdir()
    with pytest.raises(FileExistsError):
        store.save(folder)
    folder.rename(tmp_path / "other")
    store.save(folder)
    others = ["graph.part-98", "graph.part-99", "graph.part-mine"]
    assert sorted(os.listdir(tmp_path)) == ["graph", *others, "other"]
    Store.load(folder, device="cpu").close()


@pytest.mark.parametrize("has_call", [True, False])
@pytest.mark.parametrize("content", [[], ["theirs"]])
def test_a_folder_that_appears_meanwhile_is_kept(
    store: Store,
    content: list[str],
    has_call: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "graph"
    real = save_store.write_shared

    def appear(*args: Any) -> Any:
        folder.mkdir(exist_ok=True)
        for name in content:
            (folder / name).touch()
        return real(*args)

    monkeypatch.setattr(save_store, "write_shared", appear)
    if not has_call:
        monkeypatch.setattr(new_folder.ctypes, "CDLL", lambda *args, **options: object())
    with pytest.raises(FileExistsError, match="graph"):
        store.save(folder)
    assert os.listdir(tmp_path) == ["graph"]
    assert os.listdir(folder) == content


def test_a_dangling_link_is_no_free_name(store: Store, tmp_path: Path) -> None:
    (tmp_path / "graph").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="graph"):
        store.save(tmp_path / "graph")
    assert os.listdir(tmp_path) == ["graph"]


def test_a_folder_taken_for_abandoned_is_made_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another save may find it between its making and its lock."""
    real = fcntl.flock
    folders = []

    def flock(fd: int, kind: int) -> None:
        real(fd, kind)
        if not folders:
            folders.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.rmdir(folders[0])

    monkeypatch.setattr(fcntl, "flock", flock)
    store.save(tmp_path / "graph")
    assert len(folders) == 1
    assert os.listdir(tmp_path) == ["graph"]


DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint16, torch.bool]


def test_dtypes(tmp_path: Path) -> None:
    for dtype in DTYPES:
        with named_case(dtype):
            values = (torch.arange(30) % 2).to(torch.uint8).view(5, 6).to(dtype)
            edges = EdgeSource(coo=torch.zeros((2, 3), dtype=torch.int64))
            with Store.build(
                GraphSource.homogeneous(5, edges, {"x": values}), plan="host", device="cpu"
            ) as store:
                store.save(tmp_path / str(dtype))
            with Store.load(tmp_path / str(dtype), device="cpu") as again:
                read = again.node_table("x").read()
                assert read.dtype == dtype
                assert torch.equal(read.view(torch.uint8), values.view(torch.uint8))
