"""Rows in files that one rank has mapped: each rank reads its share of the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.memory import Group
from peergraph.memory.region.mapped_file import MappedFile
from peergraph.store import EdgeSource, GraphSource, Store
from peergraph.store.build import load_rows
from peergraph.testing import run_ranks
from tests.named_case import named_case

ROWS, COLUMNS = 3001, 37


def values() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def mapped(kind: str, folder: Path) -> torch.Tensor:
    """The rows as a user maps them."""
    path = folder / "x"
    if kind == "torch":
        torch.save({"other": torch.zeros(5), "x": values()}, path)
        return torch.load(path, mmap=True)["x"]
    rows = np.memmap(path, np.float32, "w+", 28, (ROWS, COLUMNS))
    rows[:] = values().numpy()
    rows.flush()
    mode: Any = {"read": "r", "shared": "r+", "copy on write": "c"}[kind]
    return torch.from_numpy(np.memmap(path, np.float32, mode, 28, (ROWS, COLUMNS)))


KINDS = ["torch", "read", "shared", "copy on write"]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_the_file_of_a_tensor(tmp_path: Path) -> None:
    for kind in KINDS:
        with named_case(kind):
            rows = mapped(kind, tmp_path)
            part = rows[5:1700]
            file = MappedFile.of(part)
            assert file is not None
            assert file.path == tmp_path / "x"
            result = file.read(8, file.num_bytes - 4, 2)
            assert torch.equal(result, part.view(-1).view(torch.uint8)[8:-4])
            del rows, part
            (tmp_path / "x").unlink()
            assert not file.is_there()
            (tmp_path / "x").write_bytes(b"another")
            assert not file.is_there()
            with pytest.raises(ValueError, match="has been replaced or cut"):
                file.read(0, 8, 1)


def test_tensors_without_a_file(tmp_path: Path) -> None:
    rows = mapped("copy on write", tmp_path)
    assert MappedFile.of(rows.t()) is None
    assert MappedFile.of(rows[:0]) is None
    assert MappedFile.of(rows) is not None
    rows[1700, 3] = 7.0  # a page of its own
    assert MappedFile.of(rows) is None
    shared = mapped("shared", tmp_path)
    shared[1700, 3] = 7.0  # in the file, too
    assert MappedFile.of(shared) is not None
    (tmp_path / "x").unlink()
    assert MappedFile.of(shared) is None
    for memory in (torch.randn(100_000), torch.zeros(3), torch.randn(9).share_memory_()):
        assert MappedFile.of(memory) is None


def _check(device: str, folder: str) -> None:
    load_rows._LEAST_FILE_BYTES = 0
    load_rows._PIECE_BYTES = 5000
    group = Group.current(device=device)
    loads: list[int] = []
    real = load_rows._load_file

    def load(*arguments: Any) -> None:
        loads.append(1)
        real(*arguments)

    load_rows._load_file = load
    edges = EdgeSource(coo=torch.zeros(2, 3, dtype=torch.int64))
    for number, kind in enumerate(KINDS):
        for storage in (None, {"x": "int8"}):
            source = None
            if group.rank == 0:
                tables = {"x": mapped(kind, Path(folder)), "y": torch.arange(ROWS)}
                source = GraphSource.homogeneous(ROWS, edges, tables)
            options: dict[str, Any] = {"plan": "sharded", "storage": storage, "group": group}
            with Store.build(source, **options) as store, named_case(kind, storage):
                error = (store.node_table("x").read() - values()).abs().max()
                assert error <= (0.05 if storage else 0)
                assert torch.equal(store.node_table("y").read(), torch.arange(ROWS))
            group.barrier()
        assert len(loads) == 2 * (number + 1)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_each_rank_reads_its_share(tmp_path: Path) -> None:
    run_ranks(_check, 3, "cpu", str(tmp_path))


@pytest.mark.gpus(2)
def test_each_gpu_reads_its_share(tmp_path: Path) -> None:
    run_ranks(_check, 2, "cuda", str(tmp_path), device="cuda")
