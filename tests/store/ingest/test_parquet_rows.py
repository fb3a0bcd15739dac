"""Row groups of Parquet files, decoded in several threads."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from peergraph.store.ingest.read.parquet_rows import ParquetRows
from tests.named_case import named_case

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")


def reading_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("peergraph_read")]


def test_rows_come_in_order_whatever_the_row_groups(tmp_path: Path) -> None:
    """Groups of less than a batch, of several batches, and of more than all threads may hold."""
    sizes, groups = (700, 5000, 1, 0, 64), (1, 90, 100, 101, 250, 10_000)
    for group in groups:
        values = np.random.default_rng(group).integers(1 << 40, size=sum(sizes))
        paths, begin = [], 0
        for number, size in enumerate(sizes):
            part = values[begin : begin + size]
            path = tmp_path / f"{group}-{number}.parquet"
            parquet.write_table(arrow.table({"a": part, "b": -part}), path, row_group_size=group)
            paths.append(path)
            begin += size
        for batch_rows in (100, 4096):
            with named_case(group, batch_rows):
                found = [*ParquetRows(paths).batches(["b", "a"], batch_rows)]
                assert max(map(len, found)) <= batch_rows
                columns = [np.concatenate([b.columns[c].to_numpy() for b in found]) for c in "ab"]
                assert np.array_equal(columns[0], values)
                assert np.array_equal(columns[1], -values)
                rows = np.concatenate([np.asarray(batch.rows) for batch in found])
                assert np.array_equal(rows, np.concatenate([np.arange(n) for n in sizes]))
                files = [Path(batch.file) for batch in found]
                assert files == sorted(files)
                assert sum(b.num_bytes for b in found) <= ParquetRows(paths).num_bytes
    assert reading_threads() == []


def test_a_damaged_group_is_named_after_the_rows_before_it(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    table = arrow.table({"a": np.random.default_rng(0).integers(1 << 60, size=4000)})
    parquet.write_table(table, path, row_group_size=1000, compression="gzip")
    content = bytearray(path.read_bytes())
    content[2 * len(content) // 3] ^= 0xFF  # within the third group
    path.write_bytes(content)
    batches = ParquetRows([path]).batches(["a"], 1000)
    assert [len(next(batches)) for _ in range(2)] == [1000, 1000]
    with pytest.raises(ValueError, match=r"e\.parquet cannot be read from row 2000 on"):
        next(batches)
    assert reading_threads() == []


def test_threads_end_when_the_rows_are_no_longer_wanted(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    parquet.write_table(arrow.table({"a": range(10_000)}), path, row_group_size=100)
    batches = ParquetRows([path]).batches(["a"], 100)
    assert len(next(batches)) == 100
    assert reading_threads() != []
    batches.close()  # type: ignore[attr-defined]
    assert reading_threads() == []
