"""Numbers and places of rows over several files: ranges give what arrays of numbers give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from peergraph.store.ingest.read.batch import Batch, RowRange
from peergraph.store.ingest.read.filtered_rows import FilteredRows
from peergraph.store.ingest.read.parquet_rows import ParquetRows
from peergraph.store.ingest.values.row_numbers import RowNumbers, RowPlaces

PARTS = (("a", 0, 3), ("a", 3, 10), ("b", 0, 0), ("b", 0, 1), ("b", 1, 6), ("c", 0, 4))
"""File, first row and end of each batch."""


def batches(as_ranges: bool) -> list[Batch]:
    return [
        Batch(file, RowRange(begin, end) if as_ranges else np.arange(begin, end), {}, 0)
        for file, begin, end in PARTS
    ]


def test_a_range_is_a_sequence_of_its_numbers() -> None:
    rows = RowRange(3, 6)
    assert list(rows) == [3, 4, 5]
    assert (rows[0], rows[-1], len(rows)) == (3, 5, 3)
    for number in (5, -4):
        with pytest.raises(IndexError):
            rows[number]
    assert np.array_equal(rows[np.array([2, 0])], [5, 3])
    assert np.array_equal(rows[np.array([True, False, True])], [3, 5])
    assert np.array_equal(rows[1:], [4, 5])
    assert list(rows + 4) == [7, 8, 9]
    assert list(RowRange(2, 2)) == []


def test_numbers_over_several_files() -> None:
    ranges, arrays = RowNumbers(), RowNumbers()
    found = [np.asarray(ranges.of(batch)) for batch in batches(True)]
    for rows, batch in zip(found, batches(False), strict=True):
        assert np.array_equal(rows, arrays.of(batch))
    assert np.array_equal(np.concatenate(found), np.arange(20))
    assert ranges.total == arrays.total == 20


def test_places_over_several_files() -> None:
    places = RowPlaces()
    found = [places.of(batch) for batch in batches(True)]
    assert np.array_equal(np.concatenate(found), np.arange(20))
    expected = [(file, row) for file, begin, end in PARTS for row in range(begin, end)]
    assert [places.place(number) for number in range(20)] == expected
    of_arrays = RowPlaces()
    for batch in batches(False):
        of_arrays.of(batch)
    assert [of_arrays.place(number) for number in range(20)] == expected


def test_rows_of_several_files_that_satisfy_a_condition(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
    parquet = pytest.importorskip("pyarrow.parquet")
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")
    sizes = (500, 1, 230)
    values = np.random.default_rng(0).integers(10, size=sum(sizes))
    starts = np.cumsum([0, *sizes])
    paths = [tmp_path / f"{number}.parquet" for number in range(len(sizes))]
    for path, begin, end in zip(paths, starts, starts[1:], strict=False):
        parquet.write_table(arrow.table({"v": values[begin:end]}), path, row_group_size=90)
    reader = FilteredRows(ParquetRows(paths), "v < 4", duckdb.connect())
    places, expected = RowPlaces(), np.flatnonzero(values < 4)
    found, numbers = [], []
    for batch in reader.batches(["v"], 100):
        first = starts[paths.index(Path(batch.file))]
        found.append(np.asarray(batch.rows) + first)
        numbers.append(places.of(batch))
        assert np.array_equal(batch.columns["v"].to_numpy(), values[found[-1]])
    assert np.array_equal(np.concatenate(found), expected)
    assert np.array_equal(np.concatenate(numbers), np.arange(len(expected)))
    for number, row in enumerate(expected.tolist()):
        file = int(np.searchsorted(starts, row, side="right")) - 1
        assert places.place(number) == (str(paths[file]), row - starts[file])
