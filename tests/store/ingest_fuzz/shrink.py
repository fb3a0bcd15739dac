"""Makes a case smaller while the same thing is wrong with it."""

from __future__ import annotations

# mypy: disable-error-code="misc"
# (Lambdas with defaults have types that mypy cannot infer.)
import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.store.ingest_fuzz.case import Case, File, Rows


def kind_of(finding: str | None) -> str | None:
    """Returns the kind of a finding: its first words."""
    return (
        None
        if finding is None
        else ": ".join(finding.split(": ")[: 2 if "error" in finding.split(": ")[0] else 1])
    )


def shrink(case: Case, run: Callable[[Case], str | None], most_runs: int = 300) -> Case:
    """Returns a smaller case with a finding of the same kind.

    Args:
        case: the case.
        run: returns the finding of a case.
        most_runs: the largest number of runs.
    """
    kind, runs, progress = kind_of(run(case)), 0, True
    while progress and kind is not None:
        progress = False
        for smaller in _smaller(case):
            runs += 1
            if runs > most_runs:
                return case
            try:
                same = kind_of(run(smaller)) == kind
            except Exception:  # a case that cannot be written
                same = False
            if same:
                case, progress = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yields cases that are smaller by one thing, the largest steps first."""

    def changed(change: Callable[[Case], Any]) -> Iterator[Case]:
        smaller = copy.deepcopy(case)
        if change(smaller) is not False and smaller != case:
            yield smaller

    for n in range(len(case.edges)):
        if len(case.edges) > 1:
            yield from changed(lambda c, n=n: c.edges.pop(n))
    for n in range(len(case.nodes)):
        yield from changed(lambda c, n=n: c.nodes.pop(n))
    for n in range(len(_types(case))):
        for k in range(len(_types(case)[n].tables)):
            yield from changed(lambda c, n=n, k=k: _without_table(_types(c)[n], k))
        for k in range(len(_types(case)[n].files)):
            yield from changed(
                lambda c, n=n, k=k: len(_types(c)[n].files) > 1 and _types(c)[n].files.pop(k)
            )
        names = {column.name for file in _types(case)[n].files for column in file.columns}
        for name in sorted(names - _used(_types(case)[n])):
            yield from changed(lambda c, n=n, x=name: _without_column(_types(c)[n], x))
    for n, file in enumerate(_files(case)):
        size = file.num_rows
        step = size
        while step >= 1:
            for begin in range(0, size, step):
                if step > size // 16 or size <= 16:
                    yield from changed(
                        lambda c, n=n, b=begin, s=step: _without_rows(_files(c)[n], b, s)
                    )
            step //= 2
        for key in file.style:
            yield from changed(lambda c, n=n, key=key: _files(c)[n].style.pop(key))
    plain = {"where": None, "add_reverse": False, "numbering": "auto", "num_nodes": None,
             "form": "paths", "edge_ids": True}  # fmt: skip
    for n in range(len(_types(case))):
        for name, value in plain.items():
            yield from changed(lambda c, n=n, x=name, v=value: setattr(_types(c)[n], x, v))
    for name, value in {"memory": None, "bad_rows": "error", "store": "store"}.items():
        yield from changed(lambda c, x=name, v=value: setattr(c, x, v))


def _types(case: Case) -> list[Rows]:
    return [*case.nodes, *case.edges]


def _files(case: Case) -> list[File]:
    own = [table.file for rows in _types(case) for table in rows.tables if table.file is not None]
    return [*(file for rows in _types(case) for file in rows.files), *own]


def _used(rows: Rows) -> set[str]:
    names = {name for table in rows.tables for name in table.columns}
    return names | {rows.id or ""} | set(rows.ends or ()) | set((rows.where or ())[1:2])


def _without_table(rows: Rows, number: int) -> None:
    del rows.tables[number]


def _without_column(rows: Rows, name: str) -> bool:
    for file in rows.files:
        file.columns = [column for column in file.columns if column.name != name]
    return all(file.columns for file in rows.files)


def _without_rows(file: File, begin: int, count: int) -> None:
    for column in file.columns:
        del column.cells[begin : begin + count]
