"""A short run of the fuzzer of ingest, and what the fuzzer finds when an ingest is wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peergraph.store import Columns, Store

for package in ("pyarrow", "duckdb", "pandas"):
    pytest.importorskip(package)

from tests.store.ingest_fuzz.case import Case, Column, File, Rows, Table, parse  # noqa: E402
from tests.store.ingest_fuzz.run import run_case  # noqa: E402
from tests.store.ingest_fuzz.shrink import shrink  # noqa: E402


def test_random_files() -> None:
    """In a process of its own, since the fuzzer limits the sizes of files."""
    command = [sys.executable, "-m", "tests.store.ingest_fuzz", "--no-large", "--minutes", "0.3"]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*command, "--tables", "80"], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " 0 findings" in done.stdout


def test_a_wrong_ingest_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"s": [0, 1, 2, 0], "d": [1, 2, 0, 2], "w": [1, 2, 3, 4], "v": [1, 2, 5, 4]}
    columns = [Column(name, "int64", values) for name, values in cells.items()]
    tables = [Table("w", ["w"])]
    edges = Rows(("A", "r", "A"), [File("e.parquet", columns)], ends=("s", "d"), tables=tables)
    case = Case([], [edges])
    assert parse(repr(case)) == case
    assert run_case(case) is None
    ingest = Store.ingest

    def other_column(*args: Any, edges: dict[Any, Any], **options: Any) -> Any:
        wrong = {kind: replace(e, tables={"w": Columns("v")}) for kind, e in edges.items()}
        return ingest(*args, edges=wrong, **options)

    monkeypatch.setattr(Store, "ingest", staticmethod(other_column))
    assert str(run_case(case)).startswith("wrong edge: ('A', 'r', 'A') row 2")
    smaller = shrink(case, run_case)
    assert smaller.edges[0].files[0].num_rows == 1
    assert [column.cells for column in smaller.edges[0].files[0].columns][-1] == [5]
