"""Compares what an ingest did with the meaning of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from peergraph.store import BadRowsError, Store
from tests.store.ingest_fuzz.case import Case, Table
from tests.store.ingest_fuzz.kinds import Cell, right_values
from tests.store.ingest_fuzz.meaning import (
    ABSURD,
    Key,
    TypeRows,
    ends_of,
    is_doubtful,
    key_of,
    kinds_of_ids,
    node_types,
    read_type,
)
from tests.store.ingest_fuzz.read_files import Row

DOCUMENTED = (ValueError, OSError, TypeError, NotImplementedError, ImportError, MemoryError)


class Finding(AssertionError):
    """An ingest that did something wrong; the first words say what kind of thing."""


@dataclass
class _Nodes:
    """The ids of a node type in a store.

    Args:
        mode: ``"dense"``: ids are the numbers; ``"integer"`` or ``"text"``: they are looked up.
        count: the number of nodes.
        numbers: the node of each id that is looked up.
    """

    mode: str
    count: int
    numbers: dict[Any, int] = field(default_factory=dict)

    def find(self, key: Key) -> int | None:
        """Returns the node of an id; None: there is none."""
        if self.mode == "dense":
            number = key.number
            return number if number is not None and 0 <= number < self.count else None
        return self.numbers.get(key.text if self.mode == "text" else key.number)


class Judge:
    """What the files of a case mean.

    Args:
        case: the case.
        folder: the folder with its files.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._nodes = {nodes.type: read_type(nodes, folder) for nodes in case.nodes}
        self._edges = [read_type(edges, folder) for edges in case.edges]
        self._types = [*self._nodes.values(), *self._edges]
        for name in node_types(case):
            kinds: set[bool] = set()
            for edges in self._edges:
                ends = edges.spec.ends or tuple(edges.files.names[:2])
                for column, end in zip(ends, edges.spec.type[::2], strict=False):
                    kinds |= kinds_of_ids(edges, column) if end == name else set()
            if len(kinds) > 1 and name not in self._nodes:
                self._edges[0].files.may.append(f"ids of {name!r} are text and numbers")

    # An ingest that failed.

    def check_error(self, error: BaseException) -> None:
        """Raises :class:`Finding` if the error is not a documented one, names nothing, or has no
        reason.
        """
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, DOCUMENTED):
            raise Finding(f"undocumented error: {text}")
        if isinstance(error, OSError) and error.errno == 27:
            raise Finding(f"too much is written: {text}")
        if not any(word and word in str(error) for word in self._words()):
            raise Finding(f"error without a name: {text}")
        if isinstance(error, BadRowsError):
            what = str(error).split("\n")[0]
            read = [e for e in self._edges if f"edges {'-'.join(e.spec.type)} " in what]
            self._check_named(error.bad_rows, read)
        if not self._has_reason():
            raise Finding(f"refused without a reason: {text}")

    def _words(self) -> Iterable[str]:
        for rows in self._types:
            yield from (file.name.split("/")[-1] for file in rows.spec.files)
            for table in rows.spec.tables:
                yield from (table.name, *table.columns)
                yield table.file.name if table.file else ""
            yield from ("where", "num_nodes", rows.spec.id or "", *(rows.spec.ends or ()))
            yield repr(rows.spec.type)
            yield rows.spec.type if isinstance(rows.spec.type, str) else rows.spec.type[1]

    def _has_reason(self) -> bool:
        return any(
            rows.files.must or rows.files.may or next(self._doubtful(rows), None) is not None
            for rows in self._types
        ) or any(map(self._may_fail, self._nodes.values()))  # fmt: skip

    def _may_fail(self, nodes: TypeRows) -> bool:
        """Returns whether the arguments of a node type do not fit its rows."""
        spec, count = nodes.spec, len(nodes.files.rows)
        if spec.num_nodes is not None and spec.files and count != spec.num_nodes:
            return True
        if spec.numbering == "mapped" and spec.files and spec.id is None:
            return True
        if not spec.files and spec.num_nodes not in (None, nodes.num_rows) and nodes.tables:
            return True
        sizes = {len(table) for table in nodes.tables}
        if not spec.files and (len(sizes) > 1 or (nodes.tables and spec.num_nodes is None)):
            return True
        if spec.numbering == "dense" and spec.id is not None:
            keys = [key_of(row.values.get(spec.id)).number for row in nodes.files.rows]
            return sorted(k for k in keys if k is not None) != list(range(count))
        return False

    def _doubtful(self, rows: TypeRows) -> Iterator[tuple[Row | None, bool]]:
        """Yields rows that may be bad, and whether they certainly are."""
        ends = iter(ends_of(rows)) if rows in self._edges else None
        earlier_keys: set[Any] = set()
        for number in range(len(rows.files.rows) or rows.num_rows):
            row = rows.files.rows[number] if rows.files.rows else None
            cells = [(values[number] if number < len(values) else [], table, values)
                     for table, values in zip(rows.spec.tables, rows.tables, strict=True)
                    ]  # fmt: skip
            may = any(is_doubtful(*each) for each in cells)
            must = any((cell.missing and table.nan == "error" and not cell.may_fail)
                       or not (cell.missing or cell.values)
                       for row_cells, table, _ in cells for cell in row_cells)  # fmt: skip
            if row is not None:
                must |= row.malformed and not row.optional
                may |= row.optional
                if ends is not None and (both := next(ends)) is not None:
                    for key, end in zip(both, rows.spec.type[::2], strict=True):
                        must |= key.number is None and key.text is None
                        may |= self._is_doubtful_end(key, end)
                if rows.spec.id is not None and not row.malformed:
                    key = key_of(row.values[rows.spec.id])
                    must |= key.number is None and key.text is None
                    may |= key.may_fail or abs(key.number or 0) >= 2**63
                    may |= not earlier_keys.isdisjoint({key.text, key.number} - {None})
                    if rows.spec.numbering == "dense":
                        may |= key.number not in range(len(rows.files.rows))
                    earlier_keys |= {key.text, key.number}
            if may or must:
                yield row, must

    def _is_doubtful_end(self, key: Key, node_type: str) -> bool:
        if key.may_fail or (key.number is None and key.text is None):
            return True
        nodes = self._nodes.get(node_type)
        if nodes is not None and nodes.spec.id is not None:
            ids = self._known_ids(nodes)
            return key.text not in ids
        count = None
        if nodes is not None:
            spec = nodes.spec
            count = spec.num_nodes
            if count is None and (spec.files or nodes.tables):
                count = len(nodes.files.rows) or nodes.num_rows
        if count is not None:
            return key.number is None or not 0 <= key.number < count
        # Only edges name the nodes: integers, or all strings.
        has_mixed = len(self._kinds_of_ids(node_type)) > 1
        return has_mixed or (key.number is not None and not 0 <= key.number < ABSURD)

    @lru_cache  # noqa: B019 - a judge lives as long as its case
    def _kinds_of_ids(self, node_type: str) -> set[bool]:
        """Returns whether ids of a type in the edges are text."""
        return {
            key.number is None
            for edges in self._edges
            for both in ends_of(edges)
            for key, end in zip(both or (), edges.spec.type[::2], strict=False)
            if end == node_type
        }

    def _known_ids(self, nodes: TypeRows) -> set[Any]:
        if not hasattr(nodes, "ids"):
            keys = [key_of(row.values.get(nodes.spec.id or "")) for row in nodes.files.rows]
            nodes.ids = {key.text for key in keys if not key.may_fail}  # type: ignore[attr-defined]
        return nodes.ids  # type: ignore[attr-defined,no-any-return]

    def _check_named(self, bad_rows: Any, complete: list[TypeRows]) -> None:
        """Compares named rows with those that may be bad; all bad rows of some types are named."""
        may: dict[str, set[int]] = {}
        must: dict[str, int] = {}
        for rows in self._types:
            for row, certain in self._doubtful(rows):
                if row is not None:
                    may.setdefault(row.file, set()).update(row.numbers)
                    own = any(table.file is not None for table in rows.spec.tables)
                    # A row is reported once, and may be so in the file of a table.
                    if certain and not own and any(rows is each for each in complete):
                        must[row.file] = must.get(row.file, 0) + 1
        files = {row.file for rows in self._types for row in rows.files.rows} - {""}
        counts: dict[str, int] = {}
        for (file, reason), named in bad_rows.named.items():
            counts[file] = counts.get(file, 0) + bad_rows.counts[file, reason]
            for number, _ in named:
                if file in files and number not in may.get(file, ()):
                    raise Finding(f"a good row is called bad: {file} row {number}: {reason}")
        for file, count in must.items():
            if file and counts.get(file, 0) < count:
                raise Finding(f"bad rows are not reported: {count} in {file}: {bad_rows}")

    # An ingest that made a store.

    def check_store(self, path: Path, report: Any, warned: bool) -> None:
        """Raises :class:`Finding` if the store is not what the files say."""
        for rows in self._types:
            if rows.files.must:
                raise Finding(f"accepted although {rows.files.must[0]}")
            numbers = [reason for reason in rows.files.may if "numbers for names" in reason]
            if numbers and "header" not in rows.spec.csv and not warned:
                raise Finding(f"accepted without a warning: {numbers[0]}")
        with Store.load(path, device="cpu", plan="host") as store:
            nodes = {t: self._check_nodes(store, path, n, t, warned or report.bad_rows.total)
                     for n, t in enumerate(node_types(self._case))}  # fmt: skip
            for edges in self._edges:
                self._check_edges(store, edges, nodes)
        self._check_named(report.bad_rows, [e for e in self._edges if not e.spec.where])

    def _check_nodes(self, store: Store, path: Path, number: int, name: str, told: bool) -> _Nodes:
        count, rows = store.num_nodes(name), self._nodes.get(name)
        ids = path / f"node{number}.ids.parquet"
        keys = pq.read_table(ids)["id"].to_pylist() if ids.exists() else None
        mode = (
            "dense"
            if keys is None
            else "text"
            if any(isinstance(k, str) for k in keys)
            else "integer"
        )
        nodes = _Nodes(mode, count, {key: n for n, key in enumerate(keys or [])})
        if keys is not None and (len(nodes.numbers) != len(keys) or len(keys) != count):
            raise Finding(f"ids differ: {count} nodes, {len(keys)} ids")
        if rows is None or not rows.spec.files:
            if rows is None or (rows.spec.num_nodes is None and not rows.tables):
                self._check_named_nodes(name, nodes, keys, told)
            elif count != (rows.num_rows if rows.spec.num_nodes is None else rows.spec.num_nodes):
                raise Finding(f"the number of nodes of {name} is {count}")
            if rows is not None:
                self._check_node_tables(store, rows, list(range(count)))
            return nodes
        if rows.spec.id is None:
            order = [n for n, row in enumerate(rows.files.rows) if not row.optional]
            if len(rows.files.rows) == count:  # empty lines are rows
                order = list(range(count))
            if any(row.malformed and not row.optional for row in rows.files.rows):
                raise Finding(f"bad row accepted: a row of {name} is malformed")
        else:
            order = self._order(rows, nodes, keys)
        if len(order) != count and not (rows.spec.num_nodes == count and not rows.tables):
            raise Finding(f"the number of nodes of {name} is {count}, there are {len(order)} rows")
        self._check_node_tables(store, rows, order)
        return nodes

    def _order(self, rows: TypeRows, nodes: _Nodes, keys: list[Any] | None) -> list[int]:
        """Returns the row of each node."""
        spec, file_keys = rows.spec, [
            Key(None, None) if row.malformed else key_of(row.values[rows.spec.id or ""])
            for row in rows.files.rows]  # fmt: skip
        numbers = [key.number for key in file_keys]
        is_dense = None not in numbers and sorted(numbers) == list(range(len(numbers)))  # type: ignore[type-var]
        if keys is None:
            if not is_dense:
                raise Finding(f"ids differ: {numbers[:5]} are taken for the numbers of the nodes")
            if spec.numbering == "mapped":
                raise Finding("ids differ: numbering='mapped' is ignored")
            order = [0] * len(numbers)
            for n, number in enumerate(numbers):
                order[number or 0] = n
            return order
        clean = is_dense and all(isinstance(r.values[spec.id or ""], int) for r in rows.files.rows)
        clean &= bool(file_keys)  # the type decides where there are no rows
        if spec.numbering == "dense" or (spec.numbering == "auto" and clean):
            raise Finding("ids differ: numbers from 0 on are looked up")
        order = []
        for n, (row, key) in enumerate(zip(rows.files.rows, file_keys, strict=True)):
            node = nodes.find(key)
            if node == len(order):
                order.append(n)
                continue
            is_bad = node is not None or (key.number is None and key.text is None)
            if not ((is_bad and self._case.bad_rows == "skip") or key.may_fail or row.optional):
                raise Finding(
                    f"ids differ: row {n} has {key}, node {len(order)} {keys[len(order) :][:1]}"
                )
        return order

    def _check_named_nodes(
        self, name: str, nodes: _Nodes, keys: list[Any] | None, told: bool
    ) -> None:
        """Checks the nodes of a type that only edges name."""
        surely: list[Key] = []
        maybe: list[Key] = []
        for edges in self._edges:
            doubtful = {id(row) for row, _ in self._doubtful(edges)}
            for row, both in zip(edges.files.rows, ends_of(edges), strict=True):
                for key, end in zip(both or (), edges.spec.type[::2], strict=False):
                    if end == name and (key.number, key.text) != (None, None):
                        (maybe if id(row) in doubtful else surely).append(key)
        if keys is None:
            least = max((k.number for k in surely if k.number is not None), default=-1) + 1
            most = (
                max((k.number for k in [*surely, *maybe] if k.number is not None), default=-1) + 1
            )
            if not min(least, most) <= nodes.count <= max(least, most, 0):
                raise Finding(f"the number of nodes of {name} is {nodes.count}, not {least}")
            return
        is_text = nodes.mode == "text"
        least_ids: set[Any]
        least_ids, most_ids = (
            {key.text if is_text else key.number for key in part}
            for part in (surely, [*surely, *maybe])
        )
        if not least_ids - {None} <= set(keys) <= most_ids:
            raise Finding(f"ids differ: {len(keys)} ids of {name}, {len(most_ids)} in the edges")
        order = [k.encode() if isinstance(k, str) else k for k in keys]
        if order != sorted(order):
            raise Finding(f"ids differ: those of {name} are not ascending")
        words = sum(k.number is None for k in [*surely, *maybe])
        integers = len(surely) + len(maybe) - words
        told |= not any(e.files.is_csv for e in self._edges)  # by the type of the column
        if nodes.mode == "text" and 0 < words <= integers // 2 and not told:
            raise Finding(f"ids differ: {words} words make {integers} integers text, silently")

    def _check_node_tables(self, store: Store, rows: TypeRows, order: list[int]) -> None:
        if not rows.spec.tables:
            return
        loaded = [_values(store.node_table(table.name, rows.spec.type), len(order))
                  for table in rows.spec.tables]  # fmt: skip
        for table, (values, dtype), cells in zip(
            rows.spec.tables, loaded, rows.tables, strict=True
        ):
            _check_dtype(table, dtype)
            if len(cells) < len(order):
                raise Finding(f"accepted although table {table.name!r} has {len(cells)} rows")
            fits = [[(_is_empty_line(rows, row) or _fits(values[node], cells[row], table, dtype, k))
                     for k in range(3)] for node, row in enumerate(order)]  # fmt: skip
            if fits and not any(all(each) for each in zip(*fits, strict=True)):
                wrong = next(n for n, fit in enumerate(fits) if not (any(fit) and fit[0]))
                raise Finding(f"wrong value: table {table.name!r} {dtype} of node {wrong} is "
                              f"{values[wrong]}, the file has {cells[order[wrong]]}")  # fmt: skip

    def _check_edges(self, store: Store, edges: TypeRows, nodes: dict[str, _Nodes]) -> None:
        spec = edges.spec
        index = store.edge_index(spec.type).t().tolist()
        step = 2 if spec.add_reverse else 1
        tables = [_values(store.edge_table(table.name, spec.type), len(index))
                  for table in spec.tables]  # fmt: skip
        for table, (_, dtype) in zip(spec.tables, tables, strict=True):
            _check_dtype(table, dtype)
        if not spec.edge_ids:
            return self._check_unordered(edges, nodes, index)
        source, destination = nodes[spec.type[0]], nodes[spec.type[2]]
        skips = self._case.bad_rows == "skip"
        rows = []
        for n, (row, both) in enumerate(zip(edges.files.rows, ends_of(edges), strict=True)):
            pair = None if both is None else (source.find(both[0]), destination.find(both[1]))
            cells = [values[n] for values in edges.tables]
            must = pair is None or None in pair
            may = row.optional or any(map(is_doubtful, cells, spec.tables, edges.tables))
            may |= both is not None and any(key.may_fail for key in both)
            rows.append((pair, cells, must, may and (skips or row.optional)))
        reason = ""
        for k in range(3):
            states = {0}
            for n, (pair, cells, must, may) in enumerate(rows):
                after = {p + step for p in states if not must and p + step <= len(index)
                         and list(pair or ()) == index[p]
                         and (step == 1 or index[p + 1] == index[p][::-1])
                         and all(_fits(values[q], cell, table, dtype, k)
                                 for (values, dtype), cell, table in
                                 zip(tables, cells, spec.tables, strict=True)
                                 for q in range(p, p + step))}  # fmt: skip
                if may or (skips and (must or not _has_all_values(cells, spec.tables, tables))):
                    after |= states
                if not after:
                    at = min(states)
                    loaded = (index[at : at + 1], [values[at : at + 1] for values, _ in tables])
                    reason = reason or (
                        f"{'bad row accepted' if must else 'wrong edge'}: {spec.type} row {n} is "
                        f"{pair} {cells}, edge {at} is {loaded}"
                    )
                    break
                states = after
            else:
                if len(index) in states:
                    return
                reason = reason or f"wrong edge: {len(index)} edges, of the files {max(states)}"
        raise Finding(reason)

    def _check_unordered(
        self, edges: TypeRows, nodes: dict[str, _Nodes], index: list[list[int]]
    ) -> None:
        """Checks edges whose ids are their positions in the CSC."""
        spec, pairs = edges.spec, []
        if any(True for _ in self._doubtful(edges)):
            return
        for both in ends_of(edges):
            assert both is not None
            pair = nodes[spec.type[0]].find(both[0]), nodes[spec.type[2]].find(both[1])
            pairs += [pair, pair[::-1]] if spec.add_reverse else [pair]
        if sorted(map(list, pairs)) != sorted(index):
            raise Finding(f"wrong edge: {spec.type} differs")


def _values(table: Any, count: int) -> tuple[list[Any], torch.dtype]:
    rows = table.gather(torch.arange(count)) if count else torch.empty(0, *table.shape[1:])
    if rows.shape[0] != table.shape[0]:
        raise Finding(f"the number of rows of a table is {table.shape[0]}, not {count}")
    return [row.reshape(-1).tolist() for row in rows], table.dtype


def _is_empty_line(rows: TypeRows, row: int) -> bool:
    return bool(rows.files.rows) and rows.files.rows[row].optional


def _check_dtype(table: Table, dtype: torch.dtype) -> None:
    if table.dtype is not None and dtype != getattr(torch, table.dtype):
        raise Finding(f"wrong dtype: {table.name!r} is {dtype}, not {table.dtype}")


def _has_all_values(cells: list[list[Cell]], specs: list[Table], tables: list[Any]) -> bool:
    """Returns whether every cell has a value."""
    return all(
        cell and all(right_values(c, dtype, t.dtype is not None, t.nan) for c in cell)
        for cell, t, (_, dtype) in zip(cells, specs, tables, strict=True)
    )


def _fits(values: list[Any], cells: list[Cell], table: Table, dtype: torch.dtype, k: int) -> bool:
    if len(values) != len(cells):
        return False
    for value, cell in zip(values, cells, strict=True):
        right = right_values(cell, dtype, table.dtype is not None, table.nan)
        expected = right[min(k, len(right) - 1)] if right else None
        if expected is None or not _is_equal(value, expected, cell, dtype):
            return False
    return True


def _is_equal(value: Any, expected: Any, cell: Cell, dtype: torch.dtype) -> bool:
    if value == expected or (value != value and expected != expected):
        return True
    # Arrow rounds digits behind a point to one of the two next numbers.
    rounds = cell.is_text and not cell.is_integer and dtype.is_floating_point
    return rounds and abs(value - expected) <= abs(expected) * 2 * torch.finfo(dtype).eps
