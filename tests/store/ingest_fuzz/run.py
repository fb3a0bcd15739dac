"""Runs a case in this process: writes its files, ingests them, and judges what came of it."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peergraph.store import Store
from tests.store.ingest_fuzz.case import Case
from tests.store.ingest_fuzz.judge import Finding, Judge
from tests.store.ingest_fuzz.write_files import write_case

_MOST_FILE_BYTES = 1 << 28


def limit_file_sizes() -> None:
    """Lets writes beyond a size fail, in this process and for ever."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))


def run_case(case: Case) -> str | None:
    """Returns what is wrong with the ingest of a case, or None."""
    with _working_folder() as folder:
        arguments = write_case(case, folder)
        judge = Judge(case, folder)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                report = Store.ingest(case.store, progress=False, **arguments)
        except Exception as error:
            outcome: BaseException | None = error
        else:
            outcome = None
        try:
            if outcome is not None:
                judge.check_error(outcome)
                if left := {name.name for name in folder.iterdir()} & {case.store}:
                    raise Finding(f"an error leaves files: {left}")
            else:
                judge.check_store(folder / case.store, report, bool(told))
        except Finding as finding:
            return str(finding)
    return None


@contextmanager
def _working_folder() -> Iterator[Path]:
    """A folder, which is the current one: the names of files and stores are relative to it."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="ingest_fuzz_") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
