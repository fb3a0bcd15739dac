"""A value of a file is the value of the store, or a bad row, or an error: never another value."""

from __future__ import annotations

import decimal
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peergraph.store import Columns, CsvFormat, EdgeFiles, NodeFiles, Rows, Store
from tests.named_case import named_case

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")

NO_EDGES = EdgeFiles(np.zeros((2, 0), np.int64))


def ingest_table(folder: Path, files: Any, table: Any, **options: Any) -> torch.Tensor:
    """The rows of a table of nodes."""
    store = folder / f"store{len(list(folder.iterdir()))}"
    nodes = NodeFiles(files, tables={"x": table}, **options)
    Store.ingest(store, nodes=nodes, edges=NO_EDGES, progress=False)
    with Store.load(store, plan="host", device="cpu") as loaded:
        return loaded.node_table("x").read()


def ingest_edges(folder: Path, edges: EdgeFiles, **options: Any) -> list[list[int]]:
    """``[source, destination]`` of each edge, by edge id."""
    store = folder / f"store{len(list(folder.iterdir()))}"
    Store.ingest(store, edges=edges, progress=False, **options)
    with Store.load(store, plan="host", device="cpu") as loaded:
        return loaded.edge_index().t().tolist()


def test_values_that_would_change_are_bad_rows(tmp_path: Path) -> None:
    wide, fraction = arrow.decimal128(38, 0), arrow.decimal128(38, 2)
    big, cents = decimal.Decimal(2**64 + 1), decimal.Decimal("9007199254740993.00")
    for number, (words, values, table) in enumerate(
        [
            ("too large: row 1", arrow.array([decimal.Decimal(1), big], wide), "x"),
            ("rounded: row 0", arrow.array([cents], fraction), "x"),
            ("too large: row 2", arrow.array([1.0, 2.0, 70000.0]), Columns("x", "float16")),
            ("too large: row 0", arrow.array([1e300]), Columns("x", "float32")),
            ("too large: row 0", arrow.array([500.0]), Columns("x", "float8_e4m3fn")),
            ("rounded: row 1", arrow.array([1, 2**24 + 1]), Columns("x", "float32")),
            ("rounded: row 0", arrow.array([257]), Columns("x", "bfloat16")),
            ("rounded: row 0", arrow.array([2**53 + 1]), Columns("x", "float64")),
            ("too large: row 0", arrow.array([2**63], arrow.uint64()), "x"),
            ("no whole number: row 0", arrow.array([1.5]), Columns("x", "int64")),
            ("neither 0 nor 1: row 1", arrow.array([1, 2]), Columns("x", "bool")),
            ("list of another length: row 1", arrow.array([[1, 2], [3]]), "x"),
            ("is missing: row 1", arrow.array([[1, 2], None]), "x"),
        ]
    ):  # fmt: skip
        with named_case(words, values.type):
            path = tmp_path / f"{number}.parquet"
            parquet.write_table(arrow.table({"x": values}), path)
            with pytest.raises(ValueError, match=f"{number}.parquet: 1 row: .*{words}"):
                ingest_table(tmp_path, path, table)


def test_text_that_would_change_is_a_bad_row(tmp_path: Path) -> None:
    for number, (words, lines, table) in enumerate(
        [
            ("too large: row 1", ["1.5", "1e300"], "x"),
            ("too large: row 0", ["1e400", "1.5"], Columns("x", "float64")),
            ("rounded: row 1", ["1.5", "16777217"], "x"),
            ("too large: row 0", [str(2**63), "1"], "x"),
            ("rounded: row 1", ["0.5", str(2**53 + 1)], Columns("x", "float64")),
            ("no number: row 1", ["1", "0x10", "3"], "x"),
            ("no number: row 0", ["1_000", "3"], "x"),
            ("is missing: row 1", ["1", "", "3", "4"], "x"),
            ("too large: row 1", ["1", "300"], Columns("x", "int8")),
        ]
    ):
        with named_case(words, lines):
            path = tmp_path / f"{number}.csv"
            path.write_text("\n".join(["x", *lines]) + "\n")
            with pytest.raises(ValueError, match=rf"{number}\.csv: 1 row: .*{words}"):
                ingest_table(tmp_path, path, table)


def test_types_are_those_of_all_files(tmp_path: Path) -> None:
    """Whatever the first file has."""
    ms, us = arrow.timestamp("ms"), arrow.timestamp("us")
    for number, (first, second, dtype) in enumerate(
        [
            (arrow.array([1.5], arrow.float32()), arrow.array([1e300]), torch.float64),
            (arrow.array([1], arrow.int8()), arrow.array([2**40]), torch.int64),
            (arrow.array([7], arrow.uint32()), arrow.array([-1], arrow.int32()), torch.int64),
            (arrow.array([2], arrow.int32()), arrow.array([0.5]), torch.float64),
            (arrow.array([5], ms), arrow.array([7], us), torch.int64),
            (arrow.array([None]), arrow.array([7.0]), torch.float64),
        ]
    ):
        with named_case(first.type, second.type):
            for part, values in enumerate((first, second)):
                parquet.write_table(
                    arrow.table({"x": values}), tmp_path / f"{number}-{part}.parquet"
                )
            files = str(tmp_path / f"{number}-*.parquet")
            actual = ingest_table(tmp_path, files, Columns("x", nan="zero"))
            expected = [v or 0 for v in first.to_pylist() + second.to_pylist()]
            if first.type == ms:
                expected = [5000, 7]
            assert actual.dtype == dtype
            assert actual.tolist() == expected
    parquet.write_table(arrow.table({"x": arrow.nulls(3)}), tmp_path / "nulls.parquet")
    actual = ingest_table(tmp_path, tmp_path / "nulls.parquet", Columns("x", nan="keep"))
    assert actual.dtype == torch.float32
    assert actual.isnan().tolist() == [True] * 3
    for first, second in (
        (arrow.array(["1"]), arrow.array([1])),
        (arrow.array([5], ms), arrow.array([5])),
    ):
        with named_case(first.type, second.type):
            for part, values in enumerate((first, second)):
                parquet.write_table(arrow.table({"x": values}), tmp_path / f"m{part}.parquet")
            with pytest.raises(ValueError, match="convert"):
                ingest_table(tmp_path, str(tmp_path / "m?.parquet"), "x")


def test_times_of_one_table_have_one_unit(tmp_path: Path) -> None:
    seconds, days = arrow.array([1, 2], arrow.timestamp("s")), arrow.array([1, 2], arrow.date32())
    micros = arrow.array([3, 4], arrow.timestamp("us"))
    table = arrow.table({"s": seconds, "us": micros, "d": days, "x": [0.5, 1.5]})
    result = ingest_table(tmp_path, table, ["s", "us"])
    assert result.tolist() == [[1_000_000, 3], [2_000_000, 4]]
    assert ingest_table(tmp_path, table, ["s", "x"]).tolist() == [[1, 0.5], [2, 1.5]]
    with pytest.raises(ValueError, match=r"type of its times is date32.* and timestamp.*convert"):
        ingest_table(tmp_path, table, ["s", "d"])


def test_dtypes_of_text_are_decided_by_all_files(tmp_path: Path) -> None:
    for number, (parts, dtype, expected) in enumerate(
        [
            ((["1", "2"], ["3"]), torch.int64, [1, 2, 3]),
            ((["1", "2"], ["0.5"]), torch.float32, [1, 2, 0.5]),
            ((["true", "False"], ["TRUE"]), torch.bool, [True, False, True]),
            ((["007", " 8 "], ["+9"]), torch.int64, [7, 8, 9]),
            ((["inf", "-1.5"], ["1"]), torch.float32, [float("inf"), -1.5, 1]),
            (([str(2**62 + 1)], ["0"]), torch.int64, [2**62 + 1, 0]),
        ]
    ):
        for part, lines in enumerate(parts):
            (tmp_path / f"{number}-{part}.csv").write_text("\n".join(["x", *lines]) + "\n")
        with named_case(parts):
            actual = ingest_table(tmp_path, str(tmp_path / f"{number}-*.csv"), "x")
            assert actual.dtype == dtype
            assert actual.tolist() == expected
    (tmp_path / "a0.csv").write_text("x\n16777217\n")
    (tmp_path / "a1.csv").write_text("x\n0.5\n")
    with pytest.raises(ValueError, match="16777217 would be rounded to torch.float32"):
        ingest_table(tmp_path, str(tmp_path / "a?.csv"), "x")
    (tmp_path / "b.csv").write_text("x\ntrue\n2\n")
    for dtype in (None, "float32", "bool"):
        with named_case(dtype), pytest.raises(ValueError, match="some values are true or false"):
            ingest_table(tmp_path, tmp_path / "b.csv", Columns("x", dtype))


def test_values_of_text_do_not_depend_on_other_rows_of_a_batch(tmp_path: Path) -> None:
    """With little memory, a batch has 1024 rows."""
    blocks = {"miss": "", "truth": "true", "text": "a", "whole": "1", "real": "0.5"}
    for first, second in itertools.product(blocks, blocks):
        lines = [blocks[first]] * 1500 + [blocks[second]] * 1500 + [blocks[first]] * 9
        (tmp_path / "x.csv").write_text("x\n" + "\n".join(lines) + "\n")
        results: list[Any] = []
        for memory, dtype in itertools.product((1, 1 << 30), (None, "float32")):
            store = tmp_path / f"{first}{second}{memory}{dtype}"
            edges = EdgeFiles(
                np.zeros((2, len(lines)), np.int64),
                tables={"x": Rows(tmp_path / "x.csv", dtype, "zero", CsvFormat(header=True))},
            )
            try:
                report = Store.ingest(store, edges=edges, bad_rows="skip", memory=memory)
            except ValueError:
                results.append("refused")
            else:
                values = np.load(store / "edge0.table0.npy")
                results.append((report.bad_rows.total, values.dtype, values.tobytes()))
        with named_case(first, second):
            assert results[:2] == results[2:]


def test_ids_are_taken_as_they_are_written(tmp_path: Path) -> None:
    nodes = NodeFiles(num_nodes=20)
    path = tmp_path / "e.csv"
    for words, line in (
        ("is not written as a whole number: row 1", "007,1"),
        ("is not written as a whole number: row 1", "1,+7"),
        ("is not written as a whole number: row 1", "0x1,1"),
        ("is not written as a whole number: row 1", "1.5,1"),
        ("is too large: row 1", f"{2**64 + 1},1"),
        ("is not written as a whole number: row 1", "1e17,1"),
        ("id out of range for 20 nodes: row 1", "1,20"),
        ("is missing: row 1", ","),
    ):
        with named_case(line):
            path.write_text(f"src,dst\n0,1\n{line}\n2,3\n")
            with pytest.raises(ValueError, match=words):
                ingest_edges(tmp_path, EdgeFiles(path), nodes=nodes)
            result = ingest_edges(tmp_path, EdgeFiles(path), nodes=nodes, bad_rows="skip")
            assert result == [[0, 1], [2, 3]]
    path.write_text("src,dst\n 1, 2\n3,-0\n")
    with pytest.raises(ValueError, match="not written as a whole number: row 1"):
        ingest_edges(tmp_path, EdgeFiles(path), nodes=nodes)
    wide = arrow.array([decimal.Decimal(2**64 + 1), decimal.Decimal(2)], arrow.decimal128(38, 0))
    for column in (wide, arrow.array([2.0**53, 2.0]), arrow.array([2**63 + 1, 2], arrow.uint64())):
        parquet.write_table(arrow.table({"s": column, "d": [0, 1]}), tmp_path / "e.parquet")
        with named_case(column.type), pytest.raises(ValueError, match="row 0"):
            ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.parquet"), nodes=nodes)


def test_one_bad_value_does_not_make_numbers_text(tmp_path: Path) -> None:
    lines = [f"{i},{(i + 1) % 12}" for i in range(12)]
    path = tmp_path / "e.csv"
    for bad in ("3,x", "x,4", '3,"4', "3,4.5", "03,4"):
        path.write_text("src,dst\n" + "\n".join([*lines[:3], bad, *lines[4:]]) + "\n")
        with named_case(bad), pytest.raises(ValueError, match=r"e.csv"):
            ingest_edges(tmp_path, EdgeFiles(path))
    path.write_text("src,dst\n" + "\n".join([*lines[:3], "3,x", *lines[4:]]) + "\n")
    declared = EdgeFiles(path, csv=CsvFormat(types={"src": "int64", "dst": "int64"}))
    result = ingest_edges(tmp_path, declared, bad_rows="skip")
    assert sorted(result) == sorted([i, (i + 1) % 12] for i in range(12) if i != 3)
    text = EdgeFiles(path, csv=CsvFormat(types={"src": "string", "dst": "string"}))
    result = ingest_edges(tmp_path, text)
    ids = sorted({value for line in path.read_text().splitlines()[1:] for value in line.split(",")})
    assert sorted([ids[a], ids[b]] for a, b in result) == sorted(
        line.split(",") for line in path.read_text().splitlines()[1:]
    )


def test_ids_with_leading_zeros_are_text_or_declared(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,y\n007,1\n0012,2\n")
    (tmp_path / "e.csv").write_text("src,dst\n007,0012\n")
    nodes = NodeFiles(tmp_path / "n.csv", id="id", tables={"y": "y"})
    edges = EdgeFiles(tmp_path / "e.csv", "src", "dst")
    assert ingest_edges(tmp_path, edges, nodes=nodes) == [[0, 1]]
    (tmp_path / "n.csv").write_text("id,y\n007,1\n12,2\n")
    with pytest.raises(ValueError, match=r"'007' \(.*n.csv: row 0\).*declare the column's type"):
        ingest_edges(tmp_path, edges, nodes=nodes)


def test_an_implausible_id_is_named_before_anything_is_allocated(tmp_path: Path) -> None:
    for largest in (2**33, 2**55, 2**62):
        table = arrow.table({"src": [1, largest, 2], "dst": [1, 2, 2]})
        parquet.write_table(table, tmp_path / "e.parquet")
        with named_case(largest), pytest.raises(ValueError, match=rf"id {largest} \(.*: row 1\)"):
            ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.parquet"))
        nodes = NodeFiles(num_nodes=largest + 1)
        if largest > 2**50:
            with pytest.raises(OSError, match="are free"):
                ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.parquet"), nodes=nodes)
    nodes = NodeFiles(numbering="mapped")
    assert len(ingest_edges(tmp_path, EdgeFiles(tmp_path / "e.parquet"), nodes=nodes)) == 3


def test_ids_of_text_are_looked_up_by_whole_numbers_or_text(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"id": ["1", "2", "-3"]}), tmp_path / "n.parquet")
    nodes, source = NodeFiles(tmp_path / "n.parquet", id="id"), arrow.array([1, -3])
    edges = EdgeFiles(arrow.table({"s": source, "d": ["2", "1"]}))
    assert ingest_edges(tmp_path, edges, nodes=nodes) == [[0, 1], [2, 0]]
    for column in (source.cast(arrow.float64()), source.cast(arrow.decimal128(20, 1))):
        edges = EdgeFiles(arrow.table({"s": column, "d": ["2", "1"]}))
        with named_case(column.type), pytest.raises(ValueError, match="ids of the nodes are text"):
            ingest_edges(tmp_path, edges, nodes=nodes)


def test_lists_of_lists_and_lists_of_unknown_length_are_refused(tmp_path: Path) -> None:
    kind = arrow.list_(arrow.float64())
    for words, values in (
        ("expected lists of numbers", arrow.array([[[1, 2], [3, 4]]])),
        ("length of lists is unknown", arrow.array([None, None], kind)),
    ):
        table, column = arrow.table({"x": values}), Columns("x", nan="keep")
        with named_case(words), pytest.raises(ValueError, match=words):
            ingest_table(tmp_path, table, column)
    empty = ingest_table(tmp_path, arrow.table({"x": arrow.array([[], []], kind)}), "x")
    assert empty.shape == (2, 0)
    first = arrow.table({"k": [0], "x": [[5, 6, 7]]})
    table = arrow.concat_tables([first, arrow.table({"k": [1], "x": [[1, 2]]})])
    assert ingest_table(tmp_path, table, "x", where="k = 1").tolist() == [[1, 2]]
    pairs = arrow.array([None, None], arrow.list_(arrow.float32(), 2))
    result = ingest_table(tmp_path, arrow.table({"x": pairs}), Columns("x", nan="zero"))
    assert result.tolist() == [[0, 0], [0, 0]]


def test_parts_of_arrow_tables_with_missing_values(tmp_path: Path) -> None:
    for values, expected in (
        (arrow.array([9, None, 3, 4]), [0, 3, 4]),
        (arrow.array([True, None, True, False, True]), [0, 1, 0, 1]),
        (arrow.array([[9, 9], None, [3, 4]], arrow.list_(arrow.float32(), 2)), [[0, 0], [3, 4]]),
        (arrow.array([9.5, None, 3, None], arrow.float16()), [0, 3, 0]),
    ):
        with named_case(values.type):
            table = arrow.table({"x": values}).slice(1)
            assert ingest_table(tmp_path, table, Columns("x", nan="zero")).tolist() == expected


def test_arrays_with_a_mask_and_views_of_tensors(tmp_path: Path) -> None:
    masked = np.ma.array([1, 2], mask=[False, True])
    with pytest.raises(ValueError, match="no mask"):
        ingest_table(tmp_path, None, Rows(masked), num_nodes=2)
    view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert view.is_neg()
    assert ingest_table(tmp_path, None, Rows(view), num_nodes=2).tolist() == [-2, 4]
    both = arrow.table({"a": [1, 2], "b": [3, 4]})
    assert ingest_table(tmp_path, None, Rows(both), num_nodes=2).tolist() == [[1, 3], [2, 4]]
    for table in (np.zeros((0, 4), np.int16), torch.zeros(0, 2, 3)):
        result = ingest_table(tmp_path, None, Rows(table), num_nodes=0)
        assert result.shape == table.shape
