"""Makes random cases: files of all kinds, and what may be wrong with them."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

from tests.store.ingest_fuzz.case import Case, Column, File, Rows, Table
from tests.store.ingest_fuzz.faults import add_fault
from tests.store.ingest_fuzz.kinds import DECIMALS, FLOATS, INTEGERS, LISTS, TEXTS, TIMES

_TEXTS = ["n{}", "{}x", "00{}", "é{}", "a,{}", 'q"{}', "line\n{}", " {} ", "9007199254740993{}",
          "NA{}", "null{}", "{}" * 12, "💧{}"]  # fmt: skip
_DTYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64",
           "bool"]  # fmt: skip
_PARQUET, _CSV = [".parquet", ".parquet", ".pq"], [".csv", ".tsv", ".txt", ".csv.gz", ".csv.bz2",
                                                   ".csv.zst"]  # fmt: skip
_NAMES = ["part{}", "a b{}", "it's{}", "e[{}]", "q?{}", "ü{}", "x={}", "{}.d"]


class Generator:
    """Makes the case of a seed.

    Args:
        seed: the seed.
        large: whether some CSV files may have many megabytes.
    """

    def __init__(self, seed: int, large: bool = False) -> None:
        self.random = random.Random(seed)
        self._large = large
        self._ids: dict[str, list[Any]] = {}

    def case(self) -> Case:
        """Returns a case."""
        pick = self.random
        types = ["A", "B"][: pick.choice([1, 1, 1, 2])]
        nodes = [rows for rows in map(self._nodes, types) if rows is not None]
        pairs = [("A", "r", pick.choice(types))]
        if len(types) == 2 and pick.random() < 0.5:
            pairs.append(("B", "s", pick.choice(types)))
        edges = [self._edges(pair) for pair in pairs]
        case = Case(nodes, edges)
        case.bad_rows = pick.choice(["error", "error", "skip"])
        case.memory = pick.choice([None, None, 1, 1 << 20, 64 << 20])
        for _ in range(pick.choice([0, 0, 0, 1, 1, 2])):
            add_fault(case, pick)
        if self._large and pick.random() < 0.01:
            self._enlarge(case)
        return case

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _count(self) -> int:
        return self.random.choice([0, 1, 2, 3, 5, 8, 13, 30, self.random.randrange(1000, 5000)])

    def _nodes(self, name: str) -> Rows | None:
        """Returns a node type, and notes the ids that edges may name."""
        pick, count = self.random, self._count()
        scheme = pick.choice(["dense", "dense", "integer", "text"])
        form = pick.choice(["none", "count", "files", "files", "files", "arrays"])
        ids = self._new_ids(scheme, count)
        if form == "none":
            self._ids[name] = ids
            return None
        rows = Rows(name, [])
        if form in ("count", "arrays"):
            rows.num_nodes = count if form == "count" or self._chance(0.5) else None
            ids = list(range(count))
            if form == "arrays":
                rows.tables = [self._separate(f"t{i}", count) for i in range(pick.randint(1, 2))]
                if rows.num_nodes is None and not rows.tables[0].file.name.endswith(".npy"):  # type: ignore[union-attr]
                    rows.num_nodes = count
        elif scheme == "dense" and self._chance(0.5):
            self._fill(rows, {}, count)
        else:
            rows.id = pick.choice(["id", "node id", "ID", "select", "_peergraph_row"])
            rows.numbering = pick.choice(["auto", "auto", "mapped"])
            pick.shuffle(ids)
            self._fill(rows, {rows.id: ids}, count)
        self._ids[name] = ids
        return rows

    def _edges(self, kind: tuple[str, str, str]) -> Rows:
        pick, rows = self.random, Rows(kind, [])
        sources, destinations = self._ids[kind[0]], self._ids[kind[2]]
        count = self._count() if sources and destinations else 0
        ends = [[pick.choice(ids) for _ in range(count)] for ids in (sources, destinations)]
        rows.add_reverse = kind[0] == kind[2] and self._chance(0.2)
        is_integer = not any(isinstance(x, str) for x in [*sources, *destinations])
        if is_integer and self._chance(0.15):
            self._edge_arrays(rows, ends, count)
            return rows
        names = pick.choice([("src", "dst"), ("s", "d"), ("from", "to"), ("a b", 'c"d')])
        if self._chance(0.5):
            rows.ends = names
        self._fill(rows, dict(zip(names, ends, strict=True)), count)
        rows.edge_ids = bool(rows.tables) or self._chance(0.8)
        return rows

    def _edge_arrays(self, rows: Rows, ends: list[list[int]], count: int) -> None:
        pick = self.random
        most = max((abs(x) for end in ends for x in end), default=0)
        kind = pick.choice(["int64", "int64", "int32" if most < 2**31 else "int64", "float64"])
        style = {"transposed": self._chance(0.7), "big": self._chance(0.1),
                 "order": pick.choice(["C", "C", "F"])}  # fmt: skip
        columns = [Column(str(i), kind, end) for i, end in enumerate(ends)]
        name = "e" + pick.choice([".npy", ".npy", ".npz"])
        rows.form = "tensor" if self._chance(0.3) else "paths"
        if rows.form == "tensor":
            style["big"] = False
        rows.files = [File(name, columns, style)]
        if rows.form == "paths" and name.endswith(".npz"):
            rows.files[0].style["big"] = False
        if self._chance(0.4):
            rows.tables = [self._separate("t0", count)]

    def _new_ids(self, scheme: str, count: int) -> list[Any]:
        pick = self.random
        if scheme == "dense":
            return list(range(count))
        if scheme == "integer":
            size = pick.choice([count * 3 + 2, 10**6, 2**31, 2**62])
            low = pick.choice([0, -size]) if size < 2**62 else 0
            return pick.sample(range(low, size), count)
        form = pick.choice(_TEXTS)
        return [form.replace("{}", str(i)) for i in range(count)]

    def _fill(self, rows: Rows, ids: dict[str, list[Any]], count: int) -> None:
        """Adds files with the ids and some tables."""
        pick = self.random
        is_csv = self._chance(0.4)
        columns = [self._id_column(name, values, is_csv) for name, values in ids.items()]
        for number in range(pick.choice([0, 1, 1, 2]) + (not columns)):
            columns += self._table(rows, f"t{number}", count, is_csv)
        if self._chance(0.2):
            columns.append(Column("unused", "text" if is_csv else "string", ["?"] * count))
        if is_csv and self._chance(0.2):
            rows.csv = {"header": False}
            self._rename(rows, columns)
        else:
            if is_csv and self._chance(0.8):
                rows.csv = {"header": True}
            if rows.ends is not None or not isinstance(rows.type, tuple):
                pick.shuffle(columns)
        if rows.csv.get("header", True) and self._chance(0.15):
            self._where(rows, columns, is_csv)
        self._split(rows, columns, count, is_csv)
        if not rows.where and self._chance(0.15):
            rows.tables.append(self._separate("own", count))

    def _rename(self, rows: Rows, columns: list[Column]) -> None:
        """Gives the columns the names that those of a file without a header have."""
        names = {column.name: f"f{i}" for i, column in enumerate(columns)}
        for column in columns:
            column.name = names[column.name]
        rows.id = names.get(rows.id or "")
        rows.ends = None if rows.ends is None else (names[rows.ends[0]], names[rows.ends[1]])
        for table in rows.tables:
            table.columns = [names[name] for name in table.columns]
            if table.form == "pattern":
                table.form = "list"

    def _id_column(self, name: str, values: list[Any], is_csv: bool) -> Column:
        pick = self.random
        if is_csv:
            return Column(name, "text", [str(value) for value in values])
        if any(isinstance(value, str) for value in values):
            return Column(name, pick.choice(TEXTS), values)
        low, high = min(values, default=0), max(values, default=0)
        fits = [k for k in INTEGERS if _holds(k, low, high)]
        other = ["decimal whole", "string", "dictionary int64"] if self._chance(0.15) else []
        kind = pick.choice([*fits, *other] or ["int64"])
        return Column(name, kind, [_as(kind, value) for value in values])

    def _table(self, rows: Rows, name: str, count: int, is_csv: bool) -> list[Column]:
        """Adds a table of columns; returns the columns."""
        pick = self.random
        form = pick.choice(["column", "column", "list", "pattern"])
        if any(table.form == "pattern" for table in rows.tables):
            form = "column"
        width = 1 if form == "column" else pick.randint(1, 3)
        prefix = "f" if form == "pattern" else pick.choice(["y_", "w ", "é", "Y,"]) + name
        kinds = ["text"] if is_csv else [*INTEGERS, *FLOATS, *FLOATS, "bool", *DECIMALS,
                                         *TIMES, "string", "dictionary float64"]  # fmt: skip
        kind = pick.choice([*kinds, *LISTS] if form == "column" and not is_csv else kinds)
        columns = [Column(f"{prefix}{i}", kind, self.values(kind, count)) for i in range(width)]
        dtype = pick.choice(_DTYPES) if self._chance(0.3) else None
        nan = pick.choice(["error", "error", "keep", "zero"])
        rows.tables.append(Table(name, [c.name for c in columns], form, dtype, nan))
        return columns

    def _separate(self, name: str, count: int) -> Table:
        """Returns a table of a file of its own."""
        pick = self.random
        form = pick.choice(["file", "file", "tensor"])
        suffix = pick.choice([".npy", ".npy", ".npz", ".parquet", ".csv"])
        suffix = ".npy" if form == "tensor" else suffix
        kinds = [*INTEGERS, "float32", "float64"]
        kinds += ["float16", "bool"] if suffix.startswith(".n") else []
        kind = "text" if suffix == ".csv" else pick.choice(kinds)
        width = pick.randint(1, 3)
        columns = [Column(f"c{i}", kind, self.values(kind, count)) for i in range(width)]
        style: dict[str, Any] = {}
        if suffix.startswith(".n"):
            style = {
                "order": pick.choice(["C", "C", "F"]),
                "flat": width == 1 and self._chance(0.5),
            }
            style["big"] = form == "file" and self._chance(0.1)
        dtype = pick.choice(_DTYPES) if self._chance(0.2) else None
        return Table(name, [], form, dtype, pick.choice(["error", "keep"]),
                     File(suffix, columns, style))  # fmt: skip

    def values(self, kind: str, count: int) -> list[Any]:
        """Returns ordinary values of a kind."""
        pick = self.random
        if kind in INTEGERS:
            bits = min(int(kind.lstrip("uint")), 53) - 1
            low = 0 if kind.startswith("u") else -(2**bits) + 1
            high = pick.choice([2, 10, 2**bits - 1])
            return [pick.randint(max(low, -high), high) for _ in range(count)]
        if kind in LISTS:
            width = 3 if kind == "fixed list" else pick.randint(1, 4)
            return [[pick.randint(-9, 9) for _ in range(width)] for _ in range(count)]
        if kind == "bool":
            return [self._chance(0.5) for _ in range(count)]
        if kind in DECIMALS:
            scale = 3 if kind == "decimal" else 0
            return [Decimal(pick.randint(-999, 999)).scaleb(-scale) for _ in range(count)]
        if kind in TIMES:
            step = 86400000 if kind == "date64" else 1
            most = 86000 if kind in ("time32", "time64") else 10**4
            return [pick.randint(0, most) * step for _ in range(count)]
        if kind in ("text", "string"):
            form = pick.choice(["{}", "{}.5", "{}e-3", "-{}", "{}.0"])
            return [form.format(pick.randint(1, 9999)) for _ in range(count)]
        return [
            pick.choice([0.0, -0.0, 0.5, -1.25, pick.randint(-99, 99) / 8]) for _ in range(count)
        ]

    def _where(self, rows: Rows, columns: list[Column], is_csv: bool) -> None:
        usable = [
            column
            for column in columns
            if column.cells
            and (
                column.kind in INTEGERS
                or (is_csv and all(x.isdigit() and x == str(int(x)) for x in column.cells))
            )
        ]
        if usable:
            name, kind = (
                self.random.choice(usable).name,
                self.random.choice(["above", "some", "even"]),
            )
            rows.where = (kind, name, self.random.choice([0, 1, 5, 500]))

    def _split(self, rows: Rows, columns: list[Column], count: int, is_csv: bool) -> None:
        """Puts the rows into files."""
        pick = self.random
        parts = pick.choice([1, 1, 1, 2, 3])
        rows.form = pick.choice(["paths", "paths", "paths", "glob", "folder"])
        if not is_csv and self._chance(0.2):
            rows.form = pick.choice(["table", "dataset", "reader", "pandas"])
            parts = 1
        cuts = [0, *sorted(pick.randint(0, count) for _ in range(parts - 1)), count]
        suffix, stem = pick.choice(_CSV if is_csv else _PARQUET), "part{}"
        if rows.form == "paths" and self._chance(0.1):
            stem = pick.choice(_NAMES)
        style = self._style(is_csv)
        if rows.csv and not suffix.startswith(".tsv") and self._chance(0.3):
            rows.csv["delimiter"] = ";"
        delimiter = rows.csv.get("delimiter", "\t" if suffix == ".tsv" else ",")
        for number in range(parts):
            part = [
                Column(c.name, c.kind, c.cells[cuts[number] : cuts[number + 1]]) for c in columns
            ]
            more = (
                {"delimiter": delimiter, "header": rows.csv.get("header", True)} if is_csv else {}
            )
            if not is_csv and number and self._chance(0.2):
                self._other_kind(pick.choice(part))
            rows.files.append(File(stem.format(number) + suffix, part, style | more))

    def _other_kind(self, column: Column) -> None:
        """Lets a column have another kind in one file."""
        for kinds in (INTEGERS, FLOATS, TEXTS, [*TIMES][5:8]):
            if column.kind in kinds:
                kind = self.random.choice(kinds)
                if kind not in INTEGERS or all(
                    x is None or _holds(kind, x, x) for x in column.cells
                ):
                    column.kind = kind

    def _style(self, is_csv: bool) -> dict[str, Any]:
        pick = self.random
        if not is_csv:
            return {"groups": pick.choice([None, 1, 3, 1000]), "pandas": self._chance(0.2),
                    "statistics": self._chance(0.7)}  # fmt: skip
        return {"newline": pick.choice(["\n", "\n", "\r\n"]), "bom": self._chance(0.1),
                "quote": self._chance(0.2), "no_end": self._chance(0.2)}  # fmt: skip

    def _enlarge(self, case: Case) -> None:
        """Makes a CSV file of many megabytes with a line of another length behind them."""
        for rows in case.edges:
            for file in rows.files:
                if (
                    file.name.endswith((".csv", ".txt"))
                    and 0 < file.num_rows < 4000
                    and rows.form == "paths"
                ):
                    size = sum(len(str(cell)) + 1 for c in file.columns for cell in c.cells)
                    file.style["repeat"] = repeat = 18_000_000 // size + 1
                    line = ",".join(["1"] * (len(file.columns) + 1))
                    file.style["lines"] = [(file.num_rows * repeat - 9, line)]
                    return


def _holds(kind: str, low: int, high: int) -> bool:
    bits = int(kind.lstrip("uint"))
    least, most = (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return least <= low and high <= most


def _as(kind: str, value: int) -> Any:
    return (
        Decimal(value) if kind.startswith("decimal") else str(value) if kind == "string" else value
    )
