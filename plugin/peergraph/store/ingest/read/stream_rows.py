"""Reads rows of Arrow tables and datasets, and of streams that can be read only once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peergraph.store.ingest.read.batch import Batch, Batches, RowRange, RowReader
from peergraph.store.ingest.read.optional import require
from peergraph.store.ingest.read.parquet_rows import ParquetRows, check_columns


class DatasetRows(RowReader):
    """Rows of an Arrow table or dataset.

    Args:
        name: names it in messages.
        dataset: a ``pyarrow.Table`` or ``pyarrow.dataset.Dataset``.
    """

    def __init__(self, name: str, dataset: Any) -> None:
        self._name = name
        if not hasattr(dataset, "scanner"):
            dataset = require("pyarrow.dataset", "reading Arrow tables").dataset(dataset)
        self._dataset = dataset
        self._rows = int(dataset.count_rows())

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return list(self._dataset.schema.names)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._rows

    @property
    def num_bytes(self) -> int:
        """An estimate: eight bytes per value."""
        return 8 * self._rows * len(self.column_names)

    def batches(self, columns: Sequence[str], batch_rows: int) -> Batches:
        """Yields all rows, as :class:`RowReader` says."""
        check_columns(self._name, self.column_names, columns)
        begin = 0
        # Read ahead is for many small files, and takes memory.
        for rows in self._dataset.to_batches(
            columns=[*columns], batch_size=batch_rows, batch_readahead=2, fragment_readahead=1
        ):
            end = begin + rows.num_rows
            arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
            yield Batch(self._name, RowRange(begin, end), arrays, 8 * len(columns) * rows.num_rows)
            begin = end


def spool_to_parquet(name: str, reader: Any, path: Path) -> ParquetRows:
    """Writes record batches, which can be read only once, to a Parquet file; returns its reader.

    Args:
        name: the name of the rows in messages.
        reader: a reader of Arrow, or an object with ``__arrow_c_stream__``.
        path: the path of the new file.
    """
    arrow = require("pyarrow", "reading Arrow record batches")
    parquet = require("pyarrow.parquet", "reading Arrow record batches")
    if not isinstance(reader, arrow.RecordBatchReader):
        reader = arrow.RecordBatchReader.from_stream(reader)
    with parquet.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
    return ParquetRows([path], name)
