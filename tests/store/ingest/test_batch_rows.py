"""Batches of readers fit the memory by the bytes of their rows, and the readers' threads end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peergraph.store import EdgeFiles, NodeFiles, Rows, Store
from peergraph.store.ingest.read.batch import Batch, Batches, read_threads
from peergraph.store.ingest.read.file_rows import FileRows
from peergraph.store.ingest.read.parquet_rows import ParquetRows
from peergraph.store.ingest.read.prefetch import read_ahead
from tests.named_case import named_case

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")

WIDTH, ROWS, MEMORY = 64, 3000, 64 << 20
LEAST_ROWS = 1 << 10


def reading_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("peergraph")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with ends of edges, with rows of 256 bytes, and with both in one file."""
    nodes = np.random.default_rng(0).integers(50, size=(2, ROWS))
    ends = {"s": nodes[0], "d": nodes[1]}
    wide = {f"f{i}": np.full(ROWS, i, np.float32) for i in range(WIDTH)}
    parquet.write_table(arrow.table(ends), tmp_path / "ends.parquet")
    parquet.write_table(arrow.table(wide), tmp_path / "wide.parquet")
    parquet.write_table(arrow.table({**ends, **wide}), tmp_path / "both.parquet")
    return tmp_path


def test_batches_of_every_pass_fit_the_memory(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")
    asked: list[tuple[str, tuple[str, ...], int]] = []
    batches = ParquetRows.batches

    def recorded(self: ParquetRows, columns: Sequence[str], batch_rows: int) -> Batches:
        kind = "wide" if self.column_names[0] == "f0" else "ends"
        asked.append((kind, tuple(columns), batch_rows))
        return batches(self, columns, batch_rows)

    monkeypatch.setattr(ParquetRows, "batches", recorded)
    both, ends, wide = (str(files / f"{name}.parquet") for name in ("both", "ends", "wide"))
    mapped = NodeFiles(numbering="mapped")
    array = np.zeros((ROWS, WIDTH), np.float32)
    in_array = 4 * WIDTH
    cases: list[tuple[str, Any, EdgeFiles, int]] = [
        ("in order", None, EdgeFiles(both, tables={"x": "f*"}), 0),
        ("in order, a file", None, EdgeFiles(ends, tables={"x": Rows(wide)}), in_array),
        ("in order, an array", None, EdgeFiles(ends, tables={"x": array}), in_array),
        ("looked up", mapped, EdgeFiles(both, tables={"x": "f*"}), 0),
        ("looked up, reverse", mapped, EdgeFiles(both, tables={"x": "f*"}, add_reverse=True), 0),
        ("nodes", NodeFiles(both, tables={"x": "f*"}), EdgeFiles(ends), 0),
    ]
    for name, nodes, edges, in_array in cases:
        with named_case(name):
            asked.clear()
            Store.ingest(files / name, nodes=nodes, edges=edges, memory=MEMORY, progress=False)
            assert any(rows > LEAST_ROWS for _, _, rows in asked)
            for kind, columns, rows in asked:
                row_bytes = sum(4 if column.startswith("f") else 8 for column in columns)
                if kind == "ends" and len(columns) == 2:
                    row_bytes += in_array
                held = rows * row_bytes * (read_threads() + 2)
                assert rows == LEAST_ROWS or held <= MEMORY // 4, (kind, columns, rows)


def test_strings_lists_and_dictionaries_count_as_they_are_in_memory(tmp_path: Path) -> None:
    names = ["x" * 100] * 2000
    table = {
        "text": arrow.array(names),
        "word": arrow.array(names).dictionary_encode(),
        "list": arrow.array([[0.5] * 30] * 2000, arrow.list_(arrow.float32())),
    }
    parquet.write_table(arrow.table(table), tmp_path / "a.parquet")
    reader = ParquetRows([tmp_path / "a.parquet"])
    for name, least in (("text", 100), ("word", 100), ("list", 120)):
        with named_case(name):
            assert least <= reader.row_bytes([name]) <= least + 16


def test_threads_end_while_the_error_of_a_consumer_is_held(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    parquet.write_table(arrow.table({"a": range(10_000)}), path, row_group_size=100)

    def consume() -> None:
        batches = ParquetRows([path]).batches(["a"], 100)  # which the traceback holds
        with read_ahead(batches) as ahead:
            next(ahead)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full") as held:
        consume()
    assert reading_threads() == []
    assert held.value.__traceback__ is not None


def test_rows_of_a_file_end_their_threads(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((10_000, 2), np.float32)
    path = tmp_path / "x.parquet"
    columns = {"a": values[:, 0], "b": values[:, 1]}
    parquet.write_table(arrow.table(columns), path, row_group_size=100)

    def matrix(batch: Batch) -> np.ndarray:
        return np.stack([column.to_numpy() for column in batch.columns.values()], axis=1)

    file = FileRows(ParquetRows([path]), "x", matrix, 100)
    for _ in range(2):  # passes
        for begin in range(0, 10_000, 700):
            end = min(begin + 700, 10_000)
            assert np.array_equal(file.read(begin, end), values[begin:end])
            assert file.read(end, end).shape == (0, 2)
        assert reading_threads() == []
    with pytest.raises(ValueError, match="x has 10000 rows, row 10000 is needed"):
        file.read(9990, 10_001)
    file.read(0, 50)
    assert reading_threads() != []
    file.close()
    assert reading_threads() == []
    assert file.count() == 10_000
