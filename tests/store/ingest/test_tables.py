"""Tables of a database in Parquet files: frames and edges as PyTorch Frame and pandas make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph.store import BadRowsError, GraphFiles, Store, TableFiles

pytest.importorskip("pyarrow", reason="pyarrow is not installed (peergraph[ingest])")
pytest.importorskip("duckdb", reason="duckdb is not installed (peergraph[ingest])")
pytest.importorskip("torch_frame")

import pandas as pd
import pyarrow as arrow
from pyarrow import parquet
from torch_frame import stype
from torch_frame.data.stats import StatType, compute_col_stats
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.cli.__main__ import main as cli
from tests.adapters.pyg.frames import check_same_frame


def _users(rows: int, random: np.random.Generator) -> pd.DataFrame:
    times = pd.Timestamp("2001-02-03") + pd.to_timedelta(random.integers(0, 10**9, rows), "s")
    frame = pd.DataFrame(
        {
            "id": [f"u{i}" for i in random.permutation(rows)],
            "age": random.normal(40, 10, rows),
            "visits": random.integers(0, 2**40, rows),
            "country": random.choice(["de", "fr", "us"], rows, p=[0.2, 0.3, 0.5]),
            "joined": times,
            "vector": [random.normal(size=4).astype(np.float32) for _ in range(rows)],
            "more": [random.normal(size=2) for _ in range(rows)],
        }
    )
    frame.loc[random.random(rows) < 0.2, "age"] = np.nan
    frame.loc[random.random(rows) < 0.2, "country"] = None
    frame.loc[random.random(rows) < 0.2, "joined"] = pd.NaT
    return frame


def _orders(rows: int, users: pd.DataFrame, random: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "user": random.choice(users["id"], rows),
            "at": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(rows) * 977, "s"),
            "price": random.normal(size=rows).astype(np.float32),
            "tokens": [random.integers(0, 99, n).tolist() for n in random.integers(0, 6, rows)],
            "title": [random.integers(0, 99, n).tolist() for n in random.integers(0, 3, rows)],
            "tags": [
                random.choice(list("abcd"), n, replace=False).tolist()
                for n in random.integers(0, 4, rows)
            ],
            "paid": random.random(rows) < 0.7,
        }
    )
    frame.loc[random.random(rows) < 0.2, "user"] = None
    frame.loc[3, "tags"] = None
    return frame


def _write(frame: pd.DataFrame, path: Path, **types: Any) -> None:
    table = arrow.Table.from_pandas(frame, preserve_index=False)
    for name, kind in types.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(kind))
    parquet.write_table(table, path, row_group_size=17)


@pytest.fixture
def database(tmp_path: Path) -> tuple[dict[str, pd.DataFrame], dict[str, TableFiles]]:
    random = np.random.default_rng(0)
    users = _users(60, random)
    orders = _orders(150, users, random)
    _write(users[:25], tmp_path / "users-1.parquet", vector=arrow.list_(arrow.float32(), 4))
    _write(users[25:], tmp_path / "users-2.parquet", vector=arrow.list_(arrow.float32(), 4))
    _write(orders, tmp_path / "orders.parquet")
    files = {
        "user": TableFiles(str(tmp_path / "users-*.parquet"), key="id"),
        "order": TableFiles(
            str(tmp_path / "orders.parquet"), foreign_keys={"user": "user"}, time="at"
        ),
    }
    return {"user": users, "order": orders}, files


def _times(column: pd.Series) -> Tensor:
    parts = [column.dt.year, column.dt.month - 1, column.dt.day - 1, column.dt.day_of_week]
    parts += [column.dt.hour, column.dt.minute, column.dt.second]
    return torch.tensor(np.stack([part.fillna(-1) for part in parts], axis=1)).long()


def _codes(column: pd.Series, statistics: Any, kind: StatType) -> list[Any]:
    """The place of each value among those of the statistics, which are the most frequent first."""
    values, counts = statistics[kind]
    assert dict(zip(values, counts, strict=True)) == column.explode().value_counts().to_dict()
    assert counts == sorted(counts, reverse=True)
    places = {value: place for place, value in enumerate(values)}
    if kind is StatType.COUNT:
        return [places.get(value, -1) for value in column]
    return [[-1] if row is None else [places[v] for v in row] for row in column]


def _check_lists(lists: Any, columns: list[list[list[int]]]) -> None:
    assert (lists.num_rows, lists.num_cols) == (len(columns[0]), len(columns))
    for j, column in enumerate(columns):
        assert [lists[i, j].tolist() for i in range(lists.num_rows)] == column


def _check_loaded(folder: Path, frames: dict[str, pd.DataFrame]) -> None:
    store = Store.load(folder, device="cpu")
    features, _ = pair = peergraph_pyg.stores(store)
    users, orders = frames["user"], frames["order"]
    tf = features.get_tensor("user", "tf", None)
    plain, statistics = tf[:], tf.col_stats
    assert plain.col_names_dict == {
        stype.numerical: ["age", "visits"],
        stype.categorical: ["country"],
        stype.timestamp: ["joined"],
        stype.embedding: ["vector", "more"],
    }
    numbers = torch.tensor(users[["age", "visits"]].to_numpy(np.float32))
    assert torch.equal(plain.feat_dict[stype.numerical].nan_to_num(-1), numbers.nan_to_num(-1))
    codes = _codes(users["country"], statistics["country"], StatType.COUNT)
    assert plain.feat_dict[stype.categorical].tolist() == [[code] for code in codes]
    assert torch.equal(plain.feat_dict[stype.timestamp][:, 0], _times(users["joined"]))
    for j, name in enumerate(("vector", "more")):
        expected = torch.tensor(np.stack(users[name]).astype(np.float32))
        assert torch.equal(plain.feat_dict[stype.embedding][:, j].values, expected)
    for column, kind in (("age", stype.numerical), ("visits", stype.numerical)):
        for name, value in compute_col_stats(users[column], kind).items():
            assert statistics[column][name] == pytest.approx(value)
    for name, value in compute_col_stats(users["joined"], stype.timestamp).items():
        assert torch.equal(torch.as_tensor(statistics["joined"][name]), torch.as_tensor(value))
    assert statistics["vector"] == {StatType.EMB_DIM: 4}

    tf = features.get_tensor("order", "tf", None)
    plain = tf[:]
    assert plain.col_names_dict[stype.timestamp] == ["at"]
    assert plain.col_names_dict[stype.categorical] == ["paid"]
    tokens = [orders["tokens"].tolist(), orders["title"].tolist()]
    _check_lists(plain.feat_dict[stype.text_tokenized]["input_ids"], tokens)
    tags = _codes(orders["tags"], tf.col_stats["tags"], StatType.MULTI_COUNT)
    _check_lists(plain.feat_dict[stype.multicategorical], [tags])
    seconds = (orders["at"] - pd.Timestamp(0)) // pd.Timedelta(seconds=1)
    assert store.node_table("time", "order").read().tolist() == seconds.tolist()

    numbers_of = {name: i for i, name in enumerate(users["id"])}
    keys = orders["user"].dropna()
    expected = [(i, numbers_of[key]) for i, key in keys.items()]
    forth = store.edge_index(("order", "f2p_user", "user")).t().tolist()
    assert [tuple(edge) for edge in forth] == expected
    back = store.edge_index(("user", "rev_f2p_user", "order")).flip(0).t().tolist()
    assert [tuple(edge) for edge in back] == expected
    for batch in NeighborLoader(pair, [3, 2], input_nodes="user", batch_size=11):
        for table in ("user", "order"):
            whole = features.get_tensor(table, "tf", None)[:]
            check_same_frame(batch[table].tf, whole[batch[table].n_id])


def test_frames_and_edges(database: Any, tmp_path: Path) -> None:
    frames, files = database
    report = Store.ingest(tmp_path / "store", tables=files)
    assert report.num_nodes == {"user": 60, "order": 150}
    _check_loaded(tmp_path / "store", frames)


def test_a_saved_store_is_the_same(
    database: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ingest by the command line, load, save and load again."""
    frames, files = database
    description = {
        "tables": {
            "user": {"files": "users-*.parquet", "key": "id"},
            "order": {
                "files": "orders.parquet",
                "foreign_keys": {"user": "user"},
                "time": "at",
            },
        }
    }
    (tmp_path / "database.json").write_text(json.dumps(description))
    assert cli(["ingest", str(tmp_path / "store"), str(tmp_path / "database.json")]) == 0
    assert cli(["info", str(tmp_path / "store")]) == 0
    assert "Elements of lists _L:order.tf.multicategorical" in capsys.readouterr().out
    with Store.load(tmp_path / "store", device="cpu") as store:
        store.save(tmp_path / "again")
    _check_loaded(tmp_path / "again", frames)
    assert GraphFiles(tables=files).tables == files


def test_keys_that_are_numbers_in_another_order(tmp_path: Path) -> None:
    """Rows follow the numbers; lists, whose elements stay in the files' order, do too."""
    ids, random = torch.randperm(40).tolist(), np.random.default_rng(1)
    lists = [random.integers(0, 9, n).tolist() for n in random.integers(0, 4, 40)]
    users = pd.DataFrame({"id": ids, "x": np.arange(40.0), "tokens": lists})
    _write(users, tmp_path / "users.parquet")
    files = TableFiles(tmp_path / "users.parquet", key="id")
    Store.ingest(tmp_path / "store", tables={"user": files}, storage={"tf.numerical": "float16"})
    store = Store.load(tmp_path / "store", device="cpu")
    tf = peergraph_pyg.stores(store)[0].get_tensor("user", "tf", None)
    rows = users.set_index("id").loc[range(40)]
    assert tf[:].feat_dict[stype.numerical][:, 0].tolist() == rows["x"].tolist()
    _check_lists(tf[:].feat_dict[stype.text_tokenized]["input_ids"], [rows["tokens"].tolist()])
    check_same_frame(tf.to("cpu"), tf[:])
    assert (
        "tf.numerical" in str(store.storage_reports)
        or store.node_table("tf.numerical", "user").read().dtype == torch.float32
    )


def test_foreign_keys_that_are_floats(tmp_path: Path) -> None:
    """As pandas has whole numbers with missing ones; NaN is one. In a folder with a quote."""
    tmp_path = tmp_path / "it's here"
    tmp_path.mkdir()
    _write(pd.DataFrame({"id": [10, 20, 30], "x": 1.0}), tmp_path / "users.parquet")
    keys = arrow.array([30.0, None, float("nan"), 10.0])
    parquet.write_table(arrow.table({"user": keys}), tmp_path / "orders.parquet")
    files = {
        "user": TableFiles(tmp_path / "users.parquet", key="id"),
        "order": TableFiles(tmp_path / "orders.parquet", foreign_keys={"user": "user"}),
    }
    Store.ingest(tmp_path / "store", tables=files)
    store = Store.load(tmp_path / "store", device="cpu")
    assert store.num_nodes("order") == 4
    assert store.edge_index(("order", "f2p_user", "user")).tolist() == [[0, 3], [2, 0]]


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [
        (np.array([1, 2, 2], np.int32), np.array([2**40, 2, 1]), [1, 0, 0, 2, 0, 1]),
        (np.array([0.1, 0.5], np.float32), np.array([0.1, 0.5]), [2, 0, 1, 0]),
        (np.array([-0.0, 0.0]), np.array([1.5]), [0, 0, 1]),
    ],
)
def test_categories_of_files_of_several_types(
    first: np.ndarray, second: np.ndarray, codes: list[int], tmp_path: Path
) -> None:
    for name, values in (("t0", first), ("t1", second)):
        _write(pd.DataFrame({"level": values}), tmp_path / f"{name}.parquet")
    tables = {"t": TableFiles(tmp_path / "t?.parquet", stypes={"level": "categorical"})}
    Store.ingest(tmp_path / "store", tables=tables)
    with Store.load(tmp_path / "store", device="cpu") as store:
        tf = peergraph_pyg.stores(store)[0].get_tensor("t", "tf", None)[:]
        assert tf.feat_dict[stype.categorical][:, 0].tolist() == codes
        # Those of all rows in memory.
        both = pd.concat([pd.Series(first), pd.Series(second)])
        names = tf.col_stats["level"][StatType.COUNT][0]
        assert [names[code] for code in codes] == both.tolist()


@pytest.mark.parametrize("kind", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_with_parts_of_a_second(kind: str, zone: str | None, tmp_path: Path) -> None:
    values = np.array([1500, -1500, -1, 86_399_999], "datetime64[ms]").astype(f"datetime64[{kind}]")
    times = arrow.array(values).cast(arrow.timestamp(kind, zone))
    parquet.write_table(arrow.table({"at": times}), tmp_path / "t.parquet")
    tables = {"t": TableFiles(tmp_path / "t.parquet", time="at")}
    Store.ingest(tmp_path / "store", tables=tables)
    store = Store.load(tmp_path / "store", device="cpu")
    # As RelBench's to_unix_time.
    expected = values.astype("datetime64[ns]").astype("int64") // 10**9
    assert store.node_table("time", "t").read().tolist() == expected.tolist() == [1, -2, -1, 86_399]
    tf = peergraph_pyg.stores(store)[0].get_tensor("t", "tf", None)
    column = pd.Series(values)
    assert torch.equal(tf[:].feat_dict[stype.timestamp][:, 0], _times(column))


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("nanoseconds", [-1, 1_999_999_600])
def test_times_just_before_a_second(nanoseconds: int, zone: str | None, tmp_path: Path) -> None:
    """Statistics of times that are less than half a microsecond before a second."""
    values = np.array([nanoseconds] * 2, "datetime64[ns]")
    times = arrow.array(values).cast(arrow.timestamp("ns", zone))
    parquet.write_table(arrow.table({"at": times}), tmp_path / "t.parquet")
    Store.ingest(tmp_path / "store", tables={"t": TableFiles(tmp_path / "t.parquet")})
    store = Store.load(tmp_path / "store", device="cpu")
    statistics = peergraph_pyg.stores(store)[0].get_tensor("t", "tf", None).col_stats["at"]
    [expected] = _times(pd.Series(values[:1])).tolist()
    for kind in (StatType.OLDEST_TIME, StatType.NEWEST_TIME, StatType.MEDIAN_TIME):
        assert statistics[kind].tolist() == expected
    assert statistics[StatType.YEAR_RANGE] == [expected[0]] * 2


def test_semantic_types_are_named(tmp_path: Path) -> None:
    values = {
        "level": [3, 3, 1, None],
        "ratio": [0.5, float("nan"), 0.25, 0.5],
        "series": [[1.5], [], None, [2.0, 3.0]],
        "note": list("abcd"),
    }
    parquet.write_table(arrow.table(values), tmp_path / "t.parquet")
    types = {
        "level": "categorical",
        "ratio": "categorical",
        "series": "sequence_numerical",
        "note": None,
    }
    Store.ingest(tmp_path / "s", tables={"t": TableFiles(tmp_path / "t.parquet", stypes=types)})
    store = Store.load(tmp_path / "s", device="cpu")
    tf = peergraph_pyg.stores(store)[0].get_tensor("t", "tf", None)
    assert tf[:].feat_dict[stype.categorical].tolist() == [[0, 0], [0, -1], [1, 1], [-1, 0]]
    assert tf.col_stats["ratio"] == {StatType.COUNT: ([0.5, 0.25], [2, 1])}
    _check_lists(tf[:].feat_dict[stype.sequence_numerical], [[[1.5], [], [], [2.0, 3.0]]])
    assert tf.col_stats["series"][StatType.MEAN] == pytest.approx(6.5 / 3)
    assert "note" not in str(tf.col_names_dict)


def test_tables_without_rows_and_without_columns(tmp_path: Path) -> None:
    users = pd.DataFrame({"id": np.arange(3), "x": np.ones(3)})
    _write(users, tmp_path / "users.parquet")
    _write(users.astype({"id": "int64"})[:0], tmp_path / "none.parquet")
    _write(pd.DataFrame({"a": [0, 2], "b": [1, 1]}), tmp_path / "likes.parquet")
    keys = {"a": "user", "b": "user"}
    files = {
        "user": TableFiles(tmp_path / "users.parquet", key="id"),
        "none": TableFiles(tmp_path / "none.parquet", key="id"),
        "like": TableFiles(tmp_path / "likes.parquet", foreign_keys=keys),
    }
    Store.ingest(tmp_path / "store", tables=files)
    store = Store.load(tmp_path / "store", device="cpu")
    assert [store.num_nodes(t) for t in ("user", "none", "like")] == [3, 0, 2]
    assert store.frames("like") == {}
    assert len(peergraph_pyg.stores(store)[0].get_tensor("none", "tf", None)[:]) == 0
    assert store.edge_index(("like", "f2p_a", "user")).tolist() == [[0, 1], [0, 2]]


def test_lists_that_are_all_empty(tmp_path: Path) -> None:
    lists = arrow.array([[], None, []], arrow.list_(arrow.int64()))
    parquet.write_table(arrow.table({"tokens": lists}), tmp_path / "t.parquet")
    Store.ingest(tmp_path / "store", tables={"t": TableFiles(tmp_path / "t.parquet")})
    store = Store.load(tmp_path / "store", device="cpu")
    tf = peergraph_pyg.stores(store)[0].get_tensor("t", "tf", None)
    _check_lists(tf[:].feat_dict[stype.text_tokenized]["input_ids"], [[[], [], []]])


def test_what_is_refused(database: Any, tmp_path: Path) -> None:
    frames, files = database
    order = files["order"]

    def ingest(**tables: TableFiles) -> None:
        Store.ingest(tmp_path / "refused", tables={"user": files["user"], **tables})

    for changed, message in (
        ({"foreign_keys": {"user": "shop"}}, "is the key of no table 'shop'"),
        ({"foreign_keys": {"buyer": "user"}}, "has no column 'buyer'"),
        ({"time": "price"}, "time: column 'price' is float, expected timestamps"),
        ({"stypes": {"tokens": "embedding"}}, "is a list of another length"),
    ):
        with pytest.raises(ValueError, match=message):
            ingest(order=TableFiles(**{**vars(order), **changed}))
    with pytest.raises(ValueError, match="stypes: 'age' must be one of numerical"):
        TableFiles("users.parquet", stypes={"age": "number"})
    with pytest.raises(ValueError, match="must be paths, got Table"):
        TableFiles(arrow.table({"a": [1]}))
    orders = frames["order"].copy()
    orders.loc[7, "user"] = "nobody"
    _write(orders, tmp_path / "bad.parquet")
    with pytest.raises(BadRowsError, match="table 'order', key 'user'"):
        ingest(order=TableFiles(tmp_path / "bad.parquet", foreign_keys={"user": "user"}))
    parquet.write_table(
        arrow.table({"series": [[1.0, float("inf")], [1e39]]}), tmp_path / "wide.parquet"
    )
    series = TableFiles(tmp_path / "wide.parquet", stypes={"series": "sequence_numerical"})
    with pytest.raises(ValueError, match=r"column 'series': .*1e\+39.* is infinite in float32"):
        ingest(order=series)
    assert not (tmp_path / "refused").exists()
