"""Who is taken for a rank: nobody else is listened to, and nothing of anybody else is unpickled."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from peergraph import PeerLostError
from peergraph.memory import Group
from peergraph.testing import run_ranks

_TCP_LISTEN = "0A"


class _Creates:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self._path, "w"))


def _listening(pid: int) -> set[str]:
    """The TCP sockets on which a process listens."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    inodes = {f"socket:[{line[9]}]" for line in lines if line[3] == _TCP_LISTEN}
    return {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.exists()} & inodes


def _listens(parent: int) -> tuple[set[str], set[str]]:
    before = _listening(os.getpid())
    Group.current(timeout=60).barrier()
    return _listening(os.getpid()) - before, _listening(parent)


def test_nobody_listens_on_the_network() -> None:
    assert run_ranks(_listens, 2, os.getpid()) == [(set(), set())] * 2


def _endpoint(rank: int) -> dict[str, Any]:
    store = dist.distributed_c10d._get_default_store()
    return dict(json.loads(store.get(f"peergraph/1/{rank}"))["endpoint"])


def _connect(endpoint: dict[str, Any]) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(60)
    connected.connect(b"\0peergraph-" + endpoint["name"].encode())
    return connected


def _is_refused(connected: socket.socket) -> bool:
    """Whether the other end closes without a word."""
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def _connects_first(file: str) -> list[bool]:
    knocked = []
    if dist.get_rank() == 1:
        endpoint = _endpoint(0)
        secret = bytes.fromhex(endpoint["secret"])
        for message in (
            b"",
            pickle.dumps(_Creates(file)).ljust(64, b"."),
            os.urandom(200),
            struct.pack("!I", 1) + bytes(32),
            struct.pack("!I", 0) + secret,
            struct.pack("!I", 2) + secret,
            struct.pack("!I", 2**32 - 1) + secret,
        ):
            knocked.append(_connect(endpoint))
            knocked[-1].send(message)
        _connect(endpoint).close()
    group = Group.current(timeout=60)
    assert group.all_gather(group.rank) == [0, 1]
    if group.rank == 1:
        with pytest.raises(ConnectionRefusedError):
            _connect(endpoint)
    group.barrier()
    return [_is_refused(connected) for connected in knocked]


def test_what_is_no_rank_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "created"
    assert run_ranks(_connects_first, 2, str(file)) == [[], [True] * 7]
    assert not file.exists()


def _another_user_knocks() -> bool | None:
    child = None
    if dist.get_rank() == 1:
        endpoint = _endpoint(0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            connected = _connect(endpoint)
            connected.send(struct.pack("!I", 1) + bytes.fromhex(endpoint["secret"]))
            os.write(writer, b"connected")
            os._exit(0 if _is_refused(connected) else 1)
        os.read(reader, 1)
    Group.current(timeout=60).barrier()
    return None if child is None else os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused() -> None:
    assert run_ranks(_another_user_knocks, 2) == [None, True]


def _writes_to_the_store(text: bytes) -> str:
    if dist.get_rank() == 1:
        store = dist.distributed_c10d._get_default_store()
        store.set("peergraph/1/1", text)  # type: ignore[arg-type]  # torch's stubs forget bytes
        dist.barrier()
        return ""
    with pytest.raises(PeerLostError) as caught:
        Group.current(timeout=60)
    with pytest.raises(PeerLostError):
        Group.current(timeout=60)
    dist.barrier()
    return str(caught.value)


def _texts(file: str) -> list[bytes]:
    endpoint = {"name": "00" * 16, "secret": "00" * 32, "pid": 1, "namespace": ""}
    wrong = [
        {**endpoint, key: value} for key, value in (("name", "../x"), ("secret", 7), ("pid", "1"))
    ]
    return [
        pickle.dumps(_Creates(file)),
        b"[]",
        b'{"host": 1}',
        b'{"host": "x"}',
        b" " * 10_000,
        *(json.dumps({"host": "x", "endpoint": other}).encode() for other in (*wrong, {})),
    ]


def test_what_stands_in_torchs_store_is_checked_and_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "created"
    for text in _texts(str(file)):
        message = run_ranks(_writes_to_the_store, 2, text)[0]
        assert "the entry of rank 1 in torch.distributed's store is not Peergraph's" in message
    assert not file.exists()


def _impostor() -> str:
    """The name of rank 0 in the store is another process's."""
    rank = dist.get_rank()
    if rank == 1:
        store = dist.distributed_c10d._get_default_store()
        text = json.loads(store.get("peergraph/1/0"))
        text["endpoint"]["pid"] += 1
        store.set("peergraph/1/0", json.dumps(text))
    with pytest.raises(PeerLostError) as caught:
        Group.current(timeout=2 if rank == 0 else 60)
    dist.barrier()
    return str(caught.value)


def test_a_process_that_answers_for_another_is_not_trusted() -> None:
    first, second = run_ranks(_impostor, 2)
    assert "rank 1 did not join within 2 s" in first
    assert "rank 0 cannot be trusted: process" in second


def _joins_without_an_answer(path: str) -> str:
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        Path(path).with_suffix(".new").write_text(f"{server.port} {os.getpid()}")
        os.rename(Path(path).with_suffix(".new"), path)
    while not Path(path).exists():
        time.sleep(0.01)
    port, pid = map(int, Path(path).read_text().split())
    client = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=client, rank=rank, world_size=2)
    dist.barrier()
    if rank == 0:
        time.sleep(120)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(PeerLostError) as caught:
            Group.current(timeout=2)
    finally:
        os.kill(pid, signal.SIGKILL)
    return str(caught.value)


def test_a_store_that_does_not_answer_ends_no_wait_too_late(tmp_path: Path) -> None:
    result = run_ranks(_joins_without_an_answer, 2, str(tmp_path / "port"), may_die=[0])
    assert "the store of torch.distributed did not answer within 2 s" in result[1]
