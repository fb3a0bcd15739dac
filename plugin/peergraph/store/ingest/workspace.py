"""The state that the steps of one ingest share: folders, memory, the database, bad rows."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from peergraph.memory import StorageReport
from peergraph.printing import format_bytes
from peergraph.progress import progress_bar
from peergraph.store.ingest.ingest_report import BadRows
from peergraph.store.ingest.read.optional import duckdb
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.input.storage import CheckedStorage

_LEAST_DATABASE_BYTES = 256 << 20


@dataclass
class Workspace:
    """The state of one ingest.

    Args:
        folder: the folder of the new store's files.
        memory: the number of bytes to use.
        progress: whether to show progress, as in :func:`peergraph.progress.progress_bar`.
        skips_bad_rows: whether bad rows of edges are left out; otherwise they are an error.
        storage: the narrow storage of each table that has one.
        bad_rows, bytes_read, notes, storage_reports: the parts of the report so far.
    """

    folder: Path
    memory: int
    progress: bool | None
    skips_bad_rows: bool = False
    storage: CheckedStorage = field(default_factory=dict)
    bad_rows: BadRows = field(default_factory=BadRows)
    bytes_read: int = 0
    notes: list[str] = field(default_factory=list)
    storage_reports: dict[str, StorageReport] = field(default_factory=dict)
    _database: Any = None
    _names: int = 0

    @property
    def temporary(self) -> Path:
        """A folder within the new one, which is removed at the end."""
        folder = self.folder / "temporary"
        folder.mkdir(exist_ok=True)
        return folder

    def new_database(self, files: Iterable[str] = (), folders: Iterable[str] = ()) -> Any:
        """Returns a connection of DuckDB to a database of its own, which reads the named files and
        those of the named folders only, and loads no extensions. It uses half of the memory, and
        files for what exceeds it.
        """
        settings: dict[str, Any] = {
            "memory_limit": f"{max(_LEAST_DATABASE_BYTES, self.memory // 2)}B",
            "threads": max(1, torch.get_num_threads()),
            "temp_directory": str((self.temporary / self.unique_name("spilled")).absolute()),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        database = duckdb.connect(":memory:", config=settings)
        allowed = {"allowed_paths": [*files], "allowed_directories": [*folders]}
        for setting in (
            *(f"{name} = {sql_list(names)}" for name, names in allowed.items() if names),
            "enable_progress_bar = false",
            "GLOBAL TimeZone = 'UTC'",  # not that of the machine
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            database.execute(f"SET {setting}")
        return database

    @contextmanager
    def queries(self, what: str, database: Any = None) -> Iterator[Any]:
        """Yields a cursor of a database; default: that of the ingest. Errors of DuckDB become
        those of Python, which say what was done.

        Raises:
            KeyboardInterrupt: SIGINT came.
            OSError: the disk is full.
            MemoryError: the memory is too small.
            ValueError: another error of DuckDB.
        """
        folder = str(self.temporary)
        if database is None:
            database = self._database = self._database or self.new_database()
        try:
            yield database.cursor()
        except (duckdb.Error, RuntimeError) as error:
            text = str(error)
            # A signal may also arrive where DuckDB waits, or asks Python for rows.
            signals = "Query interrupted", "KeyboardInterrupt"
            if isinstance(error, duckdb.InterruptException) or any(s in text for s in signals):
                raise KeyboardInterrupt from error
            if os.strerror(errno.ENOSPC) in text or "failed to offload" in text:
                raise OSError(errno.ENOSPC, f"{what}: {text}", folder) from error
            if isinstance(error, duckdb.OutOfMemoryException):
                raise MemoryError(f"{what}: give more memory: {text}") from error
            if isinstance(error, duckdb.IOException):
                raise OSError(errno.EIO, f"{what}: {text}", folder) from error
            if isinstance(error, duckdb.Error):
                raise ValueError(f"{what}: {text}") from error
            raise

    def unique_name(self, stem: str) -> str:
        """Returns a name that no table or file of this ingest has."""
        self._names += 1
        return f"{stem}{self._names}"

    def read(self, what: str, source: RowSource, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields batches of a source; then counts their problems, and shows progress."""
        row_bytes = source.num_bytes / max(1, source.expected_rows)
        with progress_bar(what, source.num_bytes, self.progress) as moved:
            for batch in batches:
                yield batch
                self.bad_rows.add_problems(source, batch)
                moved(int(len(batch) * row_bytes))
        self.bytes_read += source.num_bytes

    def check_space(self, num_bytes: int, what: str) -> None:
        """Raises OSError if the disk has less space than files need."""
        free = shutil.disk_usage(self.folder).free
        if num_bytes > free:
            text = f"{what} need {format_bytes(num_bytes)}, {format_bytes(free)} are free"
            raise OSError(errno.ENOSPC, text, str(self.folder))

    def close(self) -> None:
        """Removes everything temporary."""
        if self._database is not None:
            self._database.close()
        shutil.rmtree(self.folder / "temporary", ignore_errors=True)


def sql_list(texts: Iterable[str]) -> str:
    """Returns a list of texts in DuckDB's SQL."""
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"
