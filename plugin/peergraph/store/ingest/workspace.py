"""The state that the steps of one ingest share: folders, memory, the database, bad rows."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peergraph.memory import StorageReport
from peergraph.store.ingest.bad_rows import BadRows
from peergraph.store.ingest.read.optional import require
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
        bad_rows: the bad rows that were found so far.
        bytes_read: the bytes read from the files so far.
        storage: the narrow storage of each table that has one.
        storage_reports: the reports of encoded tables, by name.
    """

    folder: Path
    memory: int
    progress: bool | None
    skips_bad_rows: bool = False
    bad_rows: BadRows = field(default_factory=BadRows)
    bytes_read: int = 0
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
        """A connection of DuckDB that uses half of the memory, and files for what exceeds it.

        Raises:
            ImportError: DuckDB is not installed.
        """
        if self._database is None:
            duckdb = require("duckdb", "looking up string or sparse ids, conditions and queries")
            self._database = duckdb.connect(str(self.temporary / "ids.duckdb"))
            limit = max(_LEAST_DATABASE_BYTES, self.memory // 2)
            self._database.execute(f"SET memory_limit = '{limit}B'")
            spill = quoted(str(self.temporary / "spilled"))
            self._database.execute(f"SET temp_directory = {spill}")
            self._database.execute("SET enable_progress_bar = false")
        return self._database

    def unique_name(self, stem: str) -> str:
        """Returns a name that no table or file of this ingest has."""
        self._names += 1
        return f"{stem}{self._names}"

    def close(self) -> None:
        """Removes everything temporary."""
        if self._database is not None:
            self._database.close()
            self._database = None
        shutil.rmtree(self.folder / "temporary", ignore_errors=True)


def quoted(text: str) -> str:
    """Quotes a string for SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Quotes a name for SQL."""
    return '"' + name.replace('"', '""') + '"'
