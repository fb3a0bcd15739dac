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
from peergraph.progress import progress_bar
from peergraph.store.ingest.ingest_report import BadRows
from peergraph.store.ingest.read.optional import duckdb
from peergraph.store.ingest.read.row_source import Batch, RowSource
from peergraph.store.input.storage import CheckedStorage
from peergraph.store.placement.plan import format_bytes

_LEAST_DATABASE_BYTES = 256 << 20


@dataclass
class Workspace:
    """The state of one ingest.

    Args:
        folder: the folder of the new store's files.
        memory: the number of bytes to use.
        progress: whether to show progress, as in :func:`peergraph.progress.progress_bar`.
        skips_bad_rows: whether bad rows of edges are left out; otherwise they are an error.
        bad_rows: the bad rows that were found so far.
        bytes_read: the bytes read from the files so far.
        notes: what the report says about types and files.
        storage: the narrow storage of each table that has one.
        storage_reports: the reports of encoded tables, by name.
    """

    folder: Path
    memory: int
    progress: bool | None
    skips_bad_rows: bool = False
    bad_rows: BadRows = field(default_factory=BadRows)
    bytes_read: int = 0
    notes: list[str] = field(default_factory=list)
    storage: CheckedStorage = field(default_factory=dict)
    storage_reports: dict[str, StorageReport] = field(default_factory=dict)
    _database: Any = None
    _names: int = 0

    @property
    def temporary(self) -> Path:
        """A folder within the new one, which is removed at the end."""
        folder = self.folder / "temporary"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def database(self) -> Any:
        """A connection of DuckDB that uses half of the memory, and files for what exceeds it."""
        if self._database is None:
            self._database = self.new_database()
        return self._database

    def new_database(self, files: Iterable[str] = (), folders: Iterable[str] = ()) -> Any:
        """Returns a connection to a database of its own, which reads the named files and those of
        the named folders only, and loads no extensions.
        """
        limit = max(_LEAST_DATABASE_BYTES, self.memory // 2)
        settings: dict[str, Any] = {
            "memory_limit": f"{limit}B",
            "threads": max(1, torch.get_num_threads()),
            "temp_directory": str((self.temporary / self.unique_name("spilled")).absolute()),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
        database = duckdb.connect(":memory:", config=settings)
        allowed = {"allowed_paths": [*files], "allowed_directories": [*folders]}
        for setting in (
            *(f"{name} = {names}" for name, names in allowed.items() if names),
            "enable_progress_bar = false",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            database.execute(f"SET {setting}")
        return database

    @contextmanager
    def queries(self, what: str, database: Any = None) -> Iterator[Any]:
        """Yields a cursor. Errors of DuckDB become those of Python.

        Args:
            what: names what is done, for errors.
            database: the database; default: that of the ingest.

        Raises:
            KeyboardInterrupt: SIGINT came.
            OSError: the disk is full.
            MemoryError: the memory is too small.
            ValueError: another error of DuckDB.
        """
        folder = str(self.temporary)
        try:
            yield (self.database if database is None else database).cursor()
        except (duckdb.Error, RuntimeError) as error:
            text = str(error)
            # A signal may also arrive where DuckDB asks Python for rows.
            if (
                "nterrupted" in text
                or "KeyboardInterrupt" in text
                or isinstance(error, getattr(duckdb, "InterruptException", ()))
            ):
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
        """Yields batches of a source; then counts their bytes and problems, and shows progress."""
        with progress_bar(what, source.num_bytes, self.progress) as moved:
            for batch in batches:
                yield batch
                self.bad_rows.add_problems(source, batch)
                self.bytes_read += batch.num_bytes
                moved(batch.num_bytes)

    def check_space(self, num_bytes: int, what: str) -> None:
        """Raises OSError if the disk has less space than files need."""
        free = shutil.disk_usage(self.folder).free
        if num_bytes > free:
            raise OSError(
                errno.ENOSPC,
                f"{what} need {format_bytes(num_bytes)}, {format_bytes(free)} are free",
                str(self.folder),
            )

    def close(self) -> None:
        """Removes everything temporary."""
        if self._database is not None:
            self._database.close()
            self._database = None
        shutil.rmtree(self.folder / "temporary", ignore_errors=True)


def arrow_reader(relation: Any, batch_rows: int = 1 << 16) -> Any:
    """Returns a reader of the record batches of a relation of DuckDB."""
    # Versions before 1.5 have the other name.
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return read(batch_rows)
