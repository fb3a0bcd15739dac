"""top_k against torch.topk over all products in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import peergraph
from peergraph.memory import Group, NarrowTable, Tiers
from peergraph.store import NODE, TableTensor
from peergraph.store.search import candidates
from peergraph.store.search.product_filter import ProductFilter
from peergraph.testing import run_ranks
from tests.memory.narrow_rows import STORAGES, is_narrow, narrow_table
from tests.memory.tables import TIER_KINDS, split, table_of
from tests.named_case import named_cases
from tests.places import cpu_and_gpus
from tests.store.graphs import PLANS, build, homogeneous_source

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def brute_force(
    rows: Tensor, queries: Tensor, k: int, banned: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest products, by falling product, then by rising id."""
    products = queries.double() @ rows.double().T
    if banned is not None:
        products[banned[0], banned[1]] = -torch.inf
    order = products.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return products.gather(1, order), order


def assert_same(
    table: object, rows: Tensor, queries: Tensor, k: int, banned: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    values, ids = peergraph.top_k(table, queries, k, exclude=banned)
    expected, order = brute_force(rows.cpu(), queries.cpu(), k, banned)
    count = order.shape[1]
    assert values.shape == ids.shape == (len(queries), k)
    assert ids[:, :count].cpu().tolist() == order.tolist()
    assert ids[:, count:].eq(-1).all()
    assert values[:, count:].eq(-torch.inf).all()
    wide = rows.dtype == torch.float64
    assert values.dtype == (torch.float64 if wide else torch.float32)
    torch.testing.assert_close(
        values[:, :count].cpu().double(),
        expected,
        rtol=1e-13 if wide else 1e-7,
        atol=1e-12 if wide else 1e-6,
    )
    return values, ids


def random_table(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def order_of(rows: int, device: torch.device) -> Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(9)).to(device)


@named_cases("dtype", FLOATS)
@pytest.mark.parametrize("kind", TIER_KINDS)
def test_dtypes_and_tiers(device: torch.device, dtype: torch.dtype, kind: str) -> None:
    group = Group.current(device=device)
    rows, queries = random_table(3000, 37, dtype), random_table(11, 37, torch.float64, 1)
    table = table_of(rows, split(3000, kind), group, order=order_of(3000, device))
    for k in (1, 20, 400):
        assert_same(table, rows, queries, k)
    table.close()


@pytest.mark.parametrize("storage", STORAGES)
def test_narrow_storage(device: torch.device, storage: str) -> None:
    group = Group.current(device=device)
    x, queries = random_table(2000, 64, torch.float32), random_table(7, 64, torch.float32, 1)
    for order, apart in ((None, False), (order_of(2000, device), storage.startswith("int8"))):
        table = narrow_table(x, storage, Tiers(500, 1500), group, order=order, apart=apart)
        assert isinstance(table, NarrowTable)
        assert_same(table, table.read(), queries, 30)
        table.close()


def test_equal_products_are_ordered_by_id(device: torch.device) -> None:
    group = Group.current(device=device)
    rows = random_table(40, 8, torch.float32)[torch.arange(5000) % 40]
    for order in (None, order_of(5000, device)):
        table = table_of(rows, Tiers(2000, 3000), group, order=order)
        assert_same(table, rows, random_table(5, 8, torch.float32, 1), 300)
        assert_same(table, rows, torch.zeros(2, 8), 300)
        table.close()


def test_products_that_rounding_confuses(device: torch.device) -> None:
    # Products that differ in the last bits of float32, behind a large one that they share.
    group = Group.current(device=device)
    rows = torch.zeros(4000, 4)
    rows[:, 0] = 1000
    rows[:, 1] = torch.randperm(4000, generator=torch.Generator().manual_seed(0)) * 1e-4
    table = table_of(rows, Tiers.all_replicated(4000), group)
    queries = torch.tensor([[1.0, 1e-4, 0, 0], [-1.0, 1.0, 0, 0], [1e-30, 1e-30, 0, 0]])
    assert_same(table, rows, queries, 25)
    table.close()


def test_sizes_of_values(device: torch.device) -> None:
    group = Group.current(device=device)
    for dtype, size in ((torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e100)):
        rows, queries = random_table(900, 5, torch.float64), random_table(3, 5, torch.float64, 1)
        rows = (rows * size).to(dtype)
        table = table_of(rows, Tiers.all_replicated(900), group)
        values, ids = peergraph.top_k(table, queries, 10)
        expected, order = brute_force(rows, queries, 10)
        assert ids.cpu().equal(order)
        assert torch.allclose(values.cpu().double() / size, expected / size)
        table.close()


def test_exclude(device: torch.device) -> None:
    group = Group.current(device=device)
    rows, queries = random_table(600, 12, torch.float32), random_table(9, 12, torch.float32, 1)
    table = table_of(rows, Tiers(200, 400), group, order=order_of(600, device))
    generator = torch.Generator().manual_seed(2)
    pairs = torch.stack(
        [
            torch.randint(9, (900,), generator=generator),
            torch.randint(600, (900,), generator=generator),
        ]
    )
    everything = torch.stack([torch.full((600,), 4), torch.arange(600)])
    pairs = torch.cat([pairs, everything[:, :-3]], 1)
    values, ids = peergraph.top_k(table, queries, 15, exclude=pairs)
    products = queries.double() @ rows.double().T
    products[pairs[0], pairs[1]] = -torch.inf
    expected = products.sort(dim=1, descending=True, stable=True)
    is_row = expected.values[:, :15] > -torch.inf
    assert ids.cpu().equal(torch.where(is_row, expected.indices[:, :15], -1))
    assert values.cpu()[~is_row].eq(-torch.inf).all()
    # The same as lists by query.
    by_query = pairs[:, pairs[0].argsort(stable=True)]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(pairs[0], minlength=9)])
    listed = peergraph.top_k(table, queries, 15, exclude=(indptr.cumsum(0), by_query[1]))
    assert listed.ids.equal(ids)
    assert listed.values.equal(values)
    table.close()


def test_small_and_empty(device: torch.device) -> None:
    group = Group.current(device=device)
    for count in (0, 1, 3):
        rows = random_table(count, 4, torch.float32)
        table = table_of(rows, Tiers.all_replicated(count), group)
        assert_same(table, rows, random_table(2, 4, torch.float32, 1), 5)
        assert_same(table, rows, random_table(0, 4, torch.float32, 1), 5)
        table.close()


def test_errors() -> None:
    group = Group.current(device="cpu")
    rows = random_table(10, 4, torch.float32)
    table = table_of(rows, Tiers.all_replicated(10), group)
    queries = torch.ones(2, 4)
    with pytest.raises(TypeError, match="table: expected a table"):
        peergraph.top_k(rows, queries, 2)
    with pytest.raises(ValueError, match=r"queries: expected shape \[Q, 4\]"):
        peergraph.top_k(table, queries[:, :3], 2)
    with pytest.raises(TypeError, match="queries: expected floats"):
        peergraph.top_k(table, queries.long(), 2)
    with pytest.raises(ValueError, match="queries: expected finite"):
        peergraph.top_k(table, queries / 0, 2)
    with pytest.raises(ValueError, match="k: expected 1 or more"):
        peergraph.top_k(table, queries, 0)
    with pytest.raises(IndexError, match="exclude: 10 is out of range for 10 ids"):
        peergraph.top_k(table, queries, 2, exclude=torch.tensor([[0], [10]]))
    with pytest.raises(IndexError, match="exclude: 2 is out of range for 2 queries"):
        peergraph.top_k(table, queries, 2, exclude=torch.tensor([[2], [0]]))
    with pytest.raises(ValueError, match="exclude: indptr must rise"):
        peergraph.top_k(table, queries, 2, exclude=(torch.tensor([0, 1]), torch.tensor([1])))
    table.load(torch.full((1, 4), torch.nan), 3)
    with pytest.raises(ValueError, match="a row has NaN"):
        peergraph.top_k(table, queries, 2)
    integers = table_of(torch.ones(3, 2, dtype=torch.int64), Tiers.all_replicated(3), group)
    with pytest.raises(ValueError, match="expected two dimensions of floats"):
        peergraph.top_k(integers, torch.ones(1, 2), 2)


def _same_on_ranks(device: str) -> None:
    """Each rank has other queries; the results are those of a search over a plain tensor."""
    group = Group.current(device=device)
    queries = random_table(5 * group.rank, 24, torch.float32, group.rank)
    for kind in ("replicated", "sharded", "mixed", "all"):
        rows = random_table(1500, 24, torch.float32)
        rows[700:] = rows[:800].clone()
        table = table_of(rows, split(1500, kind), group, order=order_of(1500, group.device))
        banned = torch.stack([torch.arange(len(queries)), torch.arange(len(queries))])
        values, ids = assert_same(table, rows, queries, 40, banned)
        alone, order = _alone(rows, queries, 40, banned)
        assert torch.equal(values.cpu(), alone)
        assert torch.equal(ids.cpu(), order)
        table.close()
    narrow = narrow_table(random_table(1500, 32, torch.float32), "int8", Tiers(100, 1400), group)
    assert_same(narrow, narrow.read(), random_table(3, 32, torch.float32, group.rank), 17)
    narrow.close()


def _alone(rows: Tensor, queries: Tensor, k: int, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The result of one process."""
    alone = Group(0, 1, torch.device("cpu"), 60.0)
    table = table_of(rows, Tiers.all_replicated(len(rows)), alone)
    values, ids = peergraph.top_k(table, queries, k, exclude=banned)
    table.close()
    return values, ids


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks(world_size: int) -> None:
    run_ranks(_same_on_ranks, world_size, "cpu")


@pytest.mark.parametrize("world_size", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
def test_ranks_on_cuda(world_size: int) -> None:
    run_ranks(_same_on_ranks, world_size, "cuda", device="cuda")


def _error_on_one_rank() -> None:
    group = Group.current(device="cpu")
    table = table_of(random_table(10, 4, torch.float32), Tiers.all_sharded(10), group)
    kind, text = (RuntimeError, "rank 1 failed") if group.rank == 0 else (ValueError, "k: expected")
    with pytest.raises(kind, match=text):
        peergraph.top_k(table, torch.ones(1, 4), 1 - group.rank)
    # The ranks are still in step.
    assert peergraph.top_k(table, torch.ones(1, 4), 1 + group.rank).ids.shape == (1, 1 + group.rank)
    table.close()


def test_all_ranks_raise_if_one_fails() -> None:
    run_ranks(_error_on_one_rank, 2)


def test_store_tables_and_embeddings(device: torch.device) -> None:
    group = Group.current(device=device)
    embedding = peergraph.Embedding(group, 8, num_embeddings=300)
    rows = embedding.table.read()
    assert_same(embedding, rows, random_table(3, 8, torch.float32, 1), 9)
    embedding.close()


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernel that writes only large products, whose twin on the CPU is used by tests alone,
    with little room, so that there are several stages. Returns a word for each stage, "guess" or
    "run", and for each search without the filter.
    """
    monkeypatch.setattr(candidates, "_FILTERED_DEVICES", {"cpu", "cuda"})
    monkeypatch.setattr(candidates, "_LEAST_CAPACITY", 128)
    monkeypatch.setattr(candidates, "_CAPACITY", 1)
    calls: list[str] = []
    run, search = ProductFilter._run, candidates.Scan._search

    def count_stages(self: ProductFilter, chunk: Any, stages: list, *args: Any) -> None:
        calls.extend(["guess" if self.guesses else "run"] * len(stages))
        run(self, chunk, stages, *args)

    def count_searches(*args: Any) -> object:
        calls.append("search")
        return search(*args)

    monkeypatch.setattr(ProductFilter, "_run", count_stages)
    monkeypatch.setattr(candidates.Scan, "_search", count_searches)
    return calls


@pytest.mark.parametrize("storage", ["float32", *STORAGES])
def test_filtered_products(
    device: torch.device, storage: str, filtered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_LEAST_CAPACITY", 256)
    group = Group.current(device=device)
    for columns, dtype in ((64, torch.float32), (128, torch.float16), (32, torch.bfloat16)):
        x, queries = random_table(2500, columns, dtype), random_table(21, columns, torch.float64, 1)
        queries[3] = 0
        tiers, order = Tiers(600, 1900), order_of(2500, device)
        is_full = storage == "float32"
        if not is_full and not is_narrow(storage, dtype):
            continue
        for apart in (False, True) if storage.startswith("int8") else (False,):
            if is_full:
                table = table_of(x, tiers, group, order=order)
            else:
                table = narrow_table(x, storage, tiers, group, order=order, apart=apart)
            banned = torch.stack([torch.randint(21, (500,)), torch.randint(2500, (500,))])
            assert_same(table, table.read(), queries, 6, banned)
            table.close()
    assert filtered


@pytest.mark.parametrize("sizes", [(1.0, 1.0), (1.0, 100.0), (1e-30, 1e-36), (1e15, 1e17)])
def test_filter_with_sizes_of_rows(
    device: torch.device, sizes: tuple[float, float], filtered: list[str]
) -> None:
    # Many queries and many rows, of norms that rise by much within a block and over all rows.
    group = Group.current(device=device)
    x = random_table(40_000, 64, torch.float32)
    x *= torch.linspace(*torch.tensor(sizes).log(), 40_000).exp()[:, None]
    x[::7] *= 3
    x[1000:3000] = 0
    queries = random_table(70, 64, torch.float32, 1)
    queries[1] *= -1e-20
    banned = torch.stack([torch.randint(70, (9000,)), torch.randint(40_000, (9000,))])
    for storage in ("int8", "bfloat16"):
        table = narrow_table(x, storage, Tiers.all_replicated(40_000), group)
        rows = table.read()
        assert_same(table, rows, queries, 20)
        assert_same(table, rows, queries, 130, banned)
        # All products are negative.
        assert_same(table, rows, -rows[:5].sum(0, keepdim=True), 9)
        table.close()
    assert filtered.count("guess") > 24


def test_filter_with_negative_products(
    device: torch.device, filtered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_LEAST_CAPACITY", 1024)
    group = Group.current(device=device)
    x = random_table(9000, 128, torch.float32).abs()
    table = narrow_table(x, "int8", Tiers.all_replicated(9000), group)
    assert_same(table, table.read(), -random_table(12, 128, torch.float32, 1).abs(), 40)
    assert "search" not in filtered
    table.close()


def test_filter_guesses_right(
    device: torch.device, filtered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_LEAST_CAPACITY", 512)
    group = Group.current(device=device)
    x, queries = random_table(60_000, 64, torch.float32), random_table(50, 64, torch.float32, 1)
    table = narrow_table(x, "int8", Tiers.all_replicated(60_000), group)
    assert_same(table, table.read(), queries, 30)
    assert filtered.count("guess") > 3
    assert set(filtered) == {"guess"}
    table.close()


def test_filter_guesses_wrong(
    device: torch.device, filtered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The largest rows are in the first block, which is in the sample.
    monkeypatch.setattr(candidates, "_LEAST_CAPACITY", 512)
    group = Group.current(device=device)
    x, queries = random_table(20_000, 64, torch.float32), random_table(9, 64, torch.float32, 1)
    x[:50] += 5 * queries[4]
    table = narrow_table(x, "int8", Tiers.all_replicated(20_000), group)
    assert_same(table, table.read(), queries, 40)
    assert "run" in filtered
    assert "search" not in filtered
    # Fewer rows than k are left.
    banned = torch.stack([torch.zeros(19_990, dtype=torch.long), torch.arange(19_990)])
    assert_same(table, table.read(), queries[:3], 5, banned)
    assert_same(table, table.read(), queries[:1], 10, banned)
    table.close()


def test_filter_without_room(device: torch.device, filtered: list[str]) -> None:
    # The largest rows are in blocks that a stage has and those before it do not.
    group = Group.current(device=device)
    rows = random_table(8000, 32, torch.bfloat16)
    rows[128:512] *= 100
    table = table_of(rows, Tiers.all_replicated(8000), group)
    queries = random_table(5, 32, torch.float32, 1)
    assert_same(table, rows, queries, 12)
    assert filtered.count("run") > 4
    assert "search" not in filtered
    # As many equal products as never have room.
    equal = rows[torch.arange(8000) % 3]
    table.load(equal, 0)
    assert_same(table, equal, queries, 12)
    assert "search" in filtered
    table.close()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_rows_that_are_not_finite(
    device: torch.device, bad: float, is_filtered: bool, request: pytest.FixtureRequest
) -> None:
    if is_filtered:
        request.getfixturevalue("filtered")
    group = Group.current(device=device)
    rows = random_table(2000, 32, torch.bfloat16)
    rows[1500, 3] = bad
    table = table_of(rows, Tiers.all_replicated(2000), group)
    with pytest.raises(ValueError, match="a row has NaN"):
        peergraph.top_k(table, torch.ones(2, 32), 5)
    table.close()


def _store_tables(device: str) -> None:
    group, source = Group.current(device=device), homogeneous_source()
    for plan in PLANS:
        with build(source, plan, group=group, memory_budget=4000) as store:
            table = store.node_table("x")
            rows = table.read()
            queries = random_table(3, rows.shape[1], torch.float32, group.rank)
            for kind in (table, TableTensor(store, NODE, "x")):
                assert_same(kind, rows, queries, 9)


@cpu_and_gpus(2)
def test_tables_of_renumbered_nodes(device_type: str) -> None:
    run_ranks(_store_tables, 2, device_type, device=device_type)
