"""Files that threads write a block at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import peergraph._C as _C
from peergraph.store.disk import npy_writer
from peergraph.store.disk.npy_writer import NpyWriter


def write(path: Path, rows: torch.Tensor, counted: bool, step: int) -> NpyWriter:
    shape = (len(rows) if counted else None, *rows.shape[1:])
    with NpyWriter(path, shape, rows.dtype) as writer:
        for begin in range(0, len(rows), step):
            writer.write(rows[begin : begin + step])
    return writer


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("count", [0, 1, 4096, 4064, 5000])
def test_pieces_of_any_size_give_the_same_file(
    tmp_path: Path, count: int, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 4096 bytes: 4064 of the 16-byte rows end one exactly, behind the header."""
    monkeypatch.setattr(npy_writer, "BLOCK_BYTES", 4096)
    rows = torch.randint(1 << 30, (count, 4), dtype=torch.int32)
    entries = []
    for step in (7, 1000):
        path = tmp_path / f"{step}.npy"
        entries.append(write(path, rows, counted, step).entry)
        assert np.array_equal(np.load(path), rows.numpy())
    content = (tmp_path / "7.npy").read_bytes()
    blocks = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    expected = tuple(_C.crc32c(torch.frombuffer(bytearray(b), dtype=torch.uint8)) for b in blocks)
    assert [entry.crc32c for entry in entries] == [expected, expected]


def test_writes_of_threads_that_are_cut_short_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def short(fd: int, data: Any, offset: int) -> int:
        return real(fd, data[: max(1, len(data) // 2)], offset)

    monkeypatch.setattr(os, "pwrite", short)
    rows = torch.arange(3 << 20)
    write(tmp_path / "a.npy", rows, True, 1 << 18)
    monkeypatch.undo()
    assert np.array_equal(np.load(tmp_path / "a.npy"), rows.numpy())


@pytest.mark.parametrize("call", [1, 3])
def test_an_error_of_a_thread_is_raised(
    tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.pwrite, []

    def failing(*args: Any) -> int:
        calls.append(args)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path / "a.npy", torch.arange(2 << 20), True, 1 << 16)
