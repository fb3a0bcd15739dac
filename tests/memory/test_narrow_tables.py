"""Tables with narrow storage return what conversions of plain torch give, on every tier."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import peergraph
from peergraph.memory import Group, NarrowTable, RowCodec, Table, Tiers, table_argument
from peergraph.memory.table.row_codec import STORED_DTYPES, codec_of, storage_name
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.memory.table.rows_with_scales import (
    RowsWithScales,
    encoded_bytes,
    has_scales_apart,
)
from peergraph.memory.table.tier_sizes import tier_bytes
from tests.memory.narrow_rows import (
    FLOATS,
    STORAGES,
    each_narrow_table,
    expected_rows,
    narrow_table,
    values,
)
from tests.memory.tables import random_ids, split
from tests.named_case import named_cases
from tests.pairwise import pairwise

_SHAPES = [(), (1,), (3,), (8,), (33,), (5, 7), (128,), (602,)]


@each_narrow_table(_SHAPES)
def test_reads(
    storage: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    kind: str,
    id_dtype: torch.dtype,
    apart: bool,
    device: torch.device,
) -> None:
    x = values((97, *shape), dtype)
    expected = expected_rows(x, storage)
    order = torch.randperm(97, generator=torch.Generator().manual_seed(1)).to(device)
    group = Group.current(device=device)
    table = narrow_table(x, storage, split(97, kind), group, order=order, apart=apart)
    ids = random_ids(97, (31, 5), id_dtype).to(device)
    actual = table.gather(ids)
    assert actual.dtype == dtype
    assert torch.equal(actual.cpu(), expected[ids.cpu().long()])
    out = torch.empty_like(actual)
    assert table.gather(ids, out) is out
    assert torch.equal(out, actual)
    on_cpu = torch.empty(actual.shape, dtype=dtype)
    assert torch.equal(table.gather(ids.cpu(), on_cpu), actual.cpu())
    ids[::3] = -1
    padded = torch.where(ids.cpu().view(*ids.shape, *[1] * len(shape)) < 0, 0, actual.cpu())
    assert torch.equal(table.gather(ids, padded=True).cpu(), padded)
    assert torch.equal(table.read(), expected)
    assert torch.equal(table.read(13, 40), expected[13:40])
    table.close()


@named_cases(("storage", "rows", "shape"), pairwise(STORAGES, [0, 1, 5], [(), (0,), (3,), (16,)]))
def test_few_rows(storage: str, rows: int, shape: tuple[int, ...], device: torch.device) -> None:
    x = values((rows, *shape), torch.float32)
    group = Group.current(device=device)
    table = narrow_table(x, storage, split(rows, "replicated"), group)
    none = torch.empty(0, dtype=torch.int64, device=device)
    assert table.gather(none).shape == (0, *shape)
    every = torch.arange(rows, device=device)
    assert torch.equal(table.gather(every).cpu(), expected_rows(x, storage))
    assert torch.equal(table.read(), expected_rows(x, storage))
    table.close()


@named_cases("name", ["float8_e4m3", "float8_e5m2"])
def test_every_code_of_float8(name: str, device: torch.device) -> None:
    codes = torch.arange(256).to(torch.uint8).view(256, 1)
    expected = codes.view(STORED_DTYPES[name]).float()
    for dtype in FLOATS:
        codec = RowCodec(dtype, (1,), name)
        assert codec.row_bytes == 1
        actual = codec.decode(codes.to(device)).cpu()
        torch.testing.assert_close(
            actual, expected.to(dtype), rtol=0, atol=0, equal_nan=True, check_stride=False
        )


@named_cases("name", ["float16", "bfloat16"])
def test_every_code_of_two_bytes(name: str, device: torch.device) -> None:
    stored = torch.arange(1 << 16).to(torch.int16).view(STORED_DTYPES[name]).view(-1, 1)
    for dtype in FLOATS:
        codec = RowCodec(dtype, (1,), name)
        result = codec.decode(stored.view(torch.uint8).to(device)).cpu()
        torch.testing.assert_close(result, stored.to(dtype), rtol=0, atol=0, equal_nan=True)


@named_cases("name", [*STORED_DTYPES])
def test_values_between_two_codes_round_to_even(name: str, device: torch.device) -> None:
    if name == "int8":
        scale = 2.0**-5
        halves = torch.arange(-126, 127).float() + 0.5
        x = torch.stack([halves * scale, torch.full_like(halves, 127 * scale)], 1)
        expected = (halves / 2).round() * 2 * scale
    else:
        dtype = STORED_DTYPES[name]
        itemsize = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        codes = torch.arange(0x70 if itemsize == torch.uint8 else 0x7000).to(itemsize)
        exact = codes.view(dtype).double()
        x = ((exact[:-1] + exact[1:]) / 2).view(-1, 1).to(torch.float64)
        even = torch.where(codes[:-1] % 2 == 0, exact[:-1], exact[1:])
        expected = even
    codec = codec_of(name, x.dtype, tuple(x.shape[1:]))
    assert codec is not None
    encoded = RowEncoder(codec, "x").encode(x.to(device), 0)
    assert torch.equal(codec.decode(encoded)[:, 0].cpu(), expected.to(x.dtype))


def test_rows_of_devices_are_equal(device: torch.device) -> None:
    for storage in STORAGES:
        for dtype in FLOATS:
            codec = codec_of(storage, dtype, (37,))
            if codec is not None:
                x = values((64, 37), dtype)
                of_cpu = RowEncoder(codec, "x").encode(x, 0)
                assert torch.equal(RowEncoder(codec, "x").encode(x.to(device), 0).cpu(), of_cpu)


def test_bytes_of_rows() -> None:
    def row_bytes(storage: str, *shape: int) -> int:
        codec = codec_of(storage, torch.float32, shape)
        assert codec is not None
        return codec.row_bytes

    assert row_bytes("bfloat16", 128) == 256
    assert row_bytes("float8_e4m3", 128) == 128
    assert row_bytes("int8", 128) == 144  # a scale, and padding to 16 bytes
    assert row_bytes("int8:32", 128) == 144
    assert row_bytes("float16") == 2
    assert row_bytes("float16", 3) == 6
    assert row_bytes("int8", 3) == 8
    assert row_bytes("int8", 0) == 0


def test_names_of_storage() -> None:
    assert storage_name(torch.bfloat16) == "bfloat16"
    assert storage_name(torch.float8_e4m3fn) == storage_name("float8_e4m3fn") == "float8_e4m3"
    assert storage_name("int8:64") == "int8:64"
    for wrong in ("int4", "int8:0", "int8:6", "int8:", torch.int16, 3):
        with pytest.raises(ValueError, match="storage"):
            storage_name(wrong)  # type: ignore[arg-type]
    assert codec_of("float16", torch.float16, (3,)) is None
    assert codec_of("float32", torch.float32, (3,)) is None
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ValueError, match="is for tables of"):
            codec_of("int8", dtype, (3,))
    with pytest.raises(ValueError, match="is for tables of that dtype"):
        codec_of("float32", torch.float64, (3,))


@named_cases(
    ("storage", "value", "dtype"),
    [
        ("float16", 65520.0, torch.float32),
        ("float16", 1e300, torch.float64),
        ("bfloat16", 3.4e38, torch.float32),
        ("bfloat16", -1e39, torch.float64),
        ("float8_e4m3", -466.0, torch.bfloat16),
        ("float8_e4m3", float("inf"), torch.float32),
        ("float8_e5m2", 61440.0, torch.float16),
        ("int8", float("nan"), torch.float32),
        ("int8", float("inf"), torch.float16),
        ("int8", 1e39, torch.float64),
    ],
)
def test_values_that_do_not_fit(
    storage: str, value: float, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.ones(40, 6, dtype=dtype)
    x[23, 4] = value
    table = narrow_table(
        x.clone().fill_(1), storage, split(40, "mixed"), Group.current(device=device)
    )
    with pytest.raises(ValueError, match=r"^x: row 23 has .* in column 4, which storage"):
        table.load(x)
    with pytest.raises(ValueError, match=r"^x: row 29 has .* in column 4, which storage"):
        table.load(x[:30], 6)
    with pytest.raises(ValueError, match=r"^x: row 7 has .* in column 4"):
        table.scatter(torch.tensor([5, 7]), x[[0, 23]])
    assert torch.equal(table.read(), torch.ones_like(x))
    table.close()


def test_infinity_and_nan_where_they_can_be_stored(device: torch.device) -> None:
    x = torch.tensor([[float("inf"), -float("inf"), float("nan"), 2.0]])
    for storage in ("float16", "bfloat16", "float8_e5m2"):
        table = narrow_table(x, storage, split(1, "host"), Group.current(device=device))
        torch.testing.assert_close(table.read(), x, equal_nan=True)
        report = table.errors.report("x", table.codec)
        assert (report.not_finite, report.minimum, report.maximum) == (3, 2.0, 2.0)
        table.close()


def test_report(device: torch.device) -> None:
    x = values((50, 7), torch.float32)
    x[:, 2] *= 1e-3
    table = narrow_table(x, "int8", split(50, "replicated"), Group.current(device=device))
    report = table.errors.report("x", table.codec)
    error = (table.read() - x).abs()
    rows, columns = x.abs().amax(1, keepdim=True), x.abs().amax(0)
    assert (report.table, report.storage, report.dtype) == ("x", "int8", "float32")
    assert (report.rows, report.stored_bytes, report.user_bytes) == (50, 12, 28)
    assert (report.minimum, report.maximum) == (float(x.min()), float(x.max()))
    assert report.underflows == int(((table.read() == 0) & (x != 0)).sum()) > 0
    assert report.worst_error == pytest.approx(float((error / rows).max()))
    assert report.mean_error == pytest.approx(float((error / rows).mean()))
    assert report.worst_column_error == pytest.approx(float((error / columns).max()))
    assert report.mean_column_error == pytest.approx(float((error / columns).mean()))
    assert report.worst_column == 2
    assert "float32 stored as int8, 12 bytes a row in place of 28" in str(report)
    table.close()


def test_tiny_and_zero_rows() -> None:
    x = torch.zeros(3, 4)
    x[1] = 1e-40
    x[2, 0] = 1e-30
    table = narrow_table(x, "int8", split(3, "replicated"), Group.current(device="cpu"))
    assert torch.equal(table.read()[:2], torch.zeros(2, 4))
    assert table.read()[2, 0] == pytest.approx(1e-30)
    assert table.errors.report("x", table.codec).underflows == 4
    table.close()


@pytest.mark.parametrize(("kind", "apart"), [("all", False), ("mixed", True), ("sharded", True)])
def test_writes(kind: str, apart: bool, device: torch.device) -> None:
    x = values((60, 9), torch.float32)
    group = Group.current(device=device)
    table = narrow_table(x, "int8:4", split(60, kind), group, apart=apart)
    new = values((20, 9), torch.float32, seed=5)
    ids = torch.randperm(60, generator=torch.Generator().manual_seed(3))[:20]
    table.scatter(ids.to(device), new.to(device))
    x[ids] = new
    table.load(new[:7].numpy(), 50, chunk_bytes=50)
    x[50:57] = new[:7]
    assert torch.equal(table.read(), expected_rows(x, "int8:4"))
    with pytest.raises(ValueError, match="float32, got torch.float64"):
        table.scatter(ids, new.double())
    with pytest.raises(ValueError, match="must have shape"):
        table.scatter(ids, new[:, :3])
    with pytest.raises(ValueError, match="float32, got float64"):
        table.load(np.zeros((2, 9)))
    table.close()


def test_rows_as_they_are_stored(device: torch.device) -> None:
    """Rows with scales apart are written and read as other rows."""
    x = values((30, 32), torch.float32)
    group, tiers = Group.current(device=device), split(30, "sharded")
    ids = torch.tensor([7, 29, 0, 7], device=device)
    for storage in ("int8", "int8:8"):
        table, other = (narrow_table(x, storage, tiers, group, apart=a) for a in (False, True))
        encoded = RowEncoder(table.codec, "x").encode(x, 0)
        assert torch.equal(other.stored.read(), encoded)
        assert torch.equal(other.gather_stored(ids).cpu(), encoded[ids.cpu()])
        assert torch.equal(other.codec.decode(other.gather_stored(ids)), table.gather(ids))
        other.load_encoded(encoded[:4], 20)
        assert torch.equal(other.read(20, 24), table.read(0, 4))
        for each in (table, other):
            each.close()


def test_where_scales_are_apart() -> None:
    sharded, part, on_host = Tiers(sharded=9), Tiers(4, 5), Tiers(0, 8, 1)

    def is_apart(storage: str, columns: int, ranks: int, tiers: Tiers = sharded) -> bool:
        codec = codec_of(storage, torch.float32, (columns,))
        assert codec is not None
        apart = has_scales_apart(codec, tiers, ranks)
        sizes = encoded_bytes(codec, tiers, ranks)
        joined = tier_bytes(tiers, codec.row_bytes, ranks)
        for rank in range(ranks):
            num_bytes = sizes["replicated"][rank] + sizes["sharded"][0]
            assert num_bytes <= joined["replicated"][rank] + joined["sharded"][0]
        assert apart or sizes == joined
        return apart

    assert is_apart("int8", 128, 4)
    assert is_apart("int8", 128, 2, part)
    assert is_apart("int8:64", 128, 2)
    assert is_apart("int8", 32, 2)
    assert not is_apart("int8", 128, 1)
    assert not is_apart("int8", 128, 2, on_host)
    assert not is_apart("int8", 128, 2, Tiers(replicated=9))
    assert not is_apart("int8", 100, 2)  # the rows would begin inside sectors
    assert not is_apart("int8", 128, 8)  # scales on every rank would take more than padding
    assert not is_apart("int8", 0, 2)
    assert not is_apart("float8_e4m3", 128, 4)


def test_bytes_of_scales_apart(device: torch.device) -> None:
    x = values((12, 32), torch.float32)
    group = Group.current(device=device)
    table = narrow_table(x, "int8:16", Tiers(5, 7), group, apart=True)
    assert table.allocated == {"replicated": [5 * 32 + 12 * 8], "sharded": [7 * 32]}
    table.close()
    sharded = narrow_table(x, "int8:16", split(12, "sharded"), group, apart=True)
    assert sharded.allocated == {"replicated": [12 * 8], "sharded": [12 * 32]}
    sharded.close()


def test_bad_ids(device: torch.device) -> None:
    x = values((10, 4), torch.float32)
    table = narrow_table(x, "bfloat16", split(10, "mixed"), Group.current(device=device))

    def gather(*ids: int) -> None:
        table.gather(torch.tensor(ids, device=device))
        peergraph.synchronize()

    with pytest.raises(IndexError, match=r"ids\[1\] = 10 is out of range"):
        gather(3, 10)
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        gather(-1)
    with pytest.raises(TypeError, match="ids must be int32 or int64"):
        table.gather(torch.tensor([0.5], device=device))
    with pytest.raises(ValueError, match=r"out must be torch.float32"):
        table.gather(torch.tensor([1]), torch.empty(1, 4, dtype=torch.bfloat16))
    table.close()
    with pytest.raises(RuntimeError, match="closed"):
        table.gather(torch.tensor([1], device=device))


def test_rows_that_kernels_would_read_in_place(device: torch.device) -> None:
    x = values((70, 5), torch.float32)
    table = narrow_table(x, "float16", split(70, "mixed"), Group.current(device=device))
    for read in (lambda: table.view, lambda: table.write_views, lambda: table_argument(table)):
        with pytest.raises(
            NotImplementedError, match=r"'x' in place: its rows are stored as float16"
        ):
            read()
    with pytest.raises(NotImplementedError):
        table.local_shard()
    with pytest.raises(ValueError, match="stored as float16"):
        table.as_tensor()
    table.close()


@pytest.mark.parametrize("apart", [False, True])
def test_counts_reads(apart: bool) -> None:
    rows, group = values((12, 3), torch.float32), Group.current(device="cpu")
    table = narrow_table(rows, "int8", split(12, "host"), group, apart=apart)
    counter = table.count_reads()
    table.gather(torch.tensor([1, 2, 2]))
    assert counter.calls == 1
    assert sum(counter.totals()[0]) == 3
    table.counter = None
    table.close()


@pytest.mark.parametrize("apart", [False, True])
def test_pickles_as_a_handle(apart: bool) -> None:
    x = values((12, 3), torch.float32)
    table = narrow_table(x, "int8", split(12, "host"), Group.current(device="cpu"), apart=apart)
    codec = pickle.loads(pickle.dumps(table.codec))
    assert codec == table.codec
    again = NarrowTable.__new__(NarrowTable)
    constructor, arguments = table.__reduce__()
    assert constructor is NarrowTable
    again.__init__(*arguments)  # type: ignore[misc]
    assert torch.equal(again.read(), table.read())
    assert isinstance(table.stored, RowsWithScales if apart else Table)
    assert "storage='int8'" in repr(table)
    table.close()
