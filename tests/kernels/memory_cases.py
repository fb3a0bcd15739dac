"""Tables and stores: reads, writes, updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate import g_spmm
from peergraph.aggregate.ops.side_by_side import sums_and_self_rows
from peergraph.memory import Group, ListTable, Table, TableRows, gather_tables
from peergraph.memory.device.launching import launch_on
from peergraph.memory.distributed.found_rows import find_rows
from peergraph.memory.table.local_rows import LocalRows
from peergraph.memory.table.row_codec import codec_of
from peergraph.memory.table.row_encoder import RowEncoder
from peergraph.memory.training.coalesce import SparseRows, coalesce
from peergraph.memory.training.trained_table import TrainedTable
from peergraph.store.search.exact_products import exact_products, largest_products
from peergraph.store.search.product_filter import Candidates, ProductFilter
from tests.aggregate.graphs import features, hub_graph, random_graph
from tests.kernels.cases import case
from tests.memory.narrow_rows import FLOATS, STORAGES, is_narrow, narrow_table, values
from tests.memory.split_layout import split_layout
from tests.memory.tables import random_ids, random_rows, split, table_of
from tests.store.graphs import build, homogeneous_source


@case("copy_rows")
def gather(device: torch.device) -> Iterator[Tensor]:
    """Rows of a byte, of odd and of even sizes, and some for which a warp takes turns."""
    for width in (1, 3, 12, 64, 528, 4100):
        rows = random_rows((41, width), torch.uint8)
        table = table_of(rows, split(41, "mixed"), Group.current(device=device))
        for count, dtype in ((300, torch.int64), (7, torch.int32), (0, torch.int64)):
            ids = random_ids(41, (count,), dtype)
            yield table.gather(ids.to(device))
            ids[::3] = -1
            yield table.gather(ids.to(device), padded=True)
        table.close()


@case("copy_rows")
def gather_far_rows(device: torch.device) -> Iterator[Tensor]:
    """Enough ids that rows on the host are read in the order of their addresses."""
    rows = random_rows((1001, 3), torch.int32)
    order = torch.randperm(1001, generator=torch.Generator().manual_seed(1)).to(device)
    table = table_of(rows, split(1001, "mixed"), Group.current(device=device), order=order)
    yield table.gather(random_ids(1001, (9000,), torch.int64).to(device))
    table.close()


@case("list_lengths", "list_ends", "list_places", "copy_rows")
def gather_lists(device: torch.device) -> Iterator[Tensor]:
    """Lists of several tables with a number of columns of their own; empty lists, no rows."""
    random, group = torch.Generator().manual_seed(3), Group.current(device=device)
    elements = table_of(random_rows((900,), torch.int16), split(900, "on gpus"), group)
    tables, reads = [elements], []
    for count, columns in ((300, 3), (0, 2), (7, 1)):
        bounds = torch.randint(9, (41, columns + 1), generator=random).cumsum(1)
        bounds += torch.randint(860, (41, 1), generator=random)
        tables.append(table_of(bounds, split(41, "on gpus"), group))
        ids = random_ids(41, (count,), torch.int64).to(device)
        reads.append((ListTable(tables[-1], elements), ids))
    for lists in gather_tables(reads):
        yield from lists
    for table in tables:
        table.close()


@case("decode_rows")
def gather_of_narrow_rows(device: torch.device) -> Iterator[Tensor]:
    """Packs of values and single ones, one group of scales and several, also apart; padding."""
    for storage, dtype in zip(STORAGES, (*FLOATS, *FLOATS), strict=False):
        for width in (1, 7, 16, 132):
            if is_narrow(storage, dtype):
                rows = values((41, width), dtype)
                group = Group.current(device=device)
                ids = random_ids(41, (300,), torch.int64)
                ids[::3] = -1
                apart = storage.startswith("int8")
                for table in (
                    narrow_table(rows, storage, split(41, "mixed"), group),
                    narrow_table(rows, storage, split(41, "on gpus"), group, apart=apart),
                ):
                    yield table.gather(ids.to(device), padded=True)
                    yield table.gather(random_ids(41, (7,), torch.int32).to(device))
                    table.close()


@case("copy_rows")
def scatter(device: torch.device) -> Iterator[Tensor]:
    for width in (1, 7, 64, 513):
        table = table_of(
            random_rows((70, width), torch.uint8),
            split(70, "mixed"),
            Group.current(device=device),
        )
        ids = torch.randperm(70, generator=torch.Generator().manual_seed(2))[:40]
        table.scatter(ids.to(device), random_rows((40, width), torch.uint8, seed=1).to(device))
        yield table.read()
        table.close()


@case("find_rows", "spmm_rows")
def rows_where_they_lie(device: torch.device) -> Iterator[Tensor]:
    rows = torch.randint(9, (70, 5), generator=torch.Generator().manual_seed(3)).float()
    table = table_of(rows, split(70, "mixed"), Group.current(device=device))
    ids = random_ids(70, (40,), torch.int64).to(device)
    yield g_spmm(random_graph(device).csc(), "copy_u", "sum", TableRows(table, ids))
    table.close()


@case(
    *("find_rows", "spmm_rows", "combine_spmm", "minmax_rows", "combine_minmax", "copy_vectors"),
    exact=False,
)
def narrow_rows_where_they_lie(device: torch.device) -> Iterator[Tensor]:
    """Vectors of 8 values, the last in padding, and single values; scales apart; rows in chunks."""
    csc = hub_graph(device, 1100).csc()
    ids = random_ids(70, (50,), torch.int64).to(device)
    for storage, dtype in zip(STORAGES, (*FLOATS, *FLOATS), strict=False):
        for width in (1, 7, 36, 100, 264):
            if is_narrow(storage, dtype):
                group = Group.current(device=device)
                rows = features(70, (width,), torch.device("cpu"), dtype, grad=False)
                weights = features(csc.num_edges, (), device, dtype, seed=6, grad=False)
                for apart in [False, True] if storage.startswith("int8") else [False]:
                    table = narrow_table(rows, storage, split(70, "mixed"), group, apart=apart)
                    x = TableRows(table, ids)
                    yield g_spmm(csc, "copy_u", "mean", x)
                    yield g_spmm(csc, "mul", "mean", x, weights)
                    yield g_spmm(csc, "copy_u", "max", x)
                    yield sums_and_self_rows(csc, x, True, None, dtype)
                    table.close()


@case("locate_rows")
def rows_of_other_machines(device: torch.device) -> Iterator[Tensor]:
    """One block and many, short keys and long ones, with and without an order."""
    order = torch.randperm(9000, generator=torch.Generator().manual_seed(5))
    for rows, numbers in ((9000, order), (9000, order.int()), (1 << 36, None)):
        layout = split_layout("aabccc", rows, 500, device, numbers)
        for count in (0, 300, 70_000):
            ids = random_ids(rows, (count,), torch.int64).to(device)
            result = find_rows(ids, layout.sets[0], layout.routes)
            yield from (*result.location, result.keys, torch.from_numpy(result.host_keys))


@case("sum_runs", "update_rows")
def sparse_update(device: torch.device) -> Iterator[Tensor]:
    """Small whole numbers, so that sums are the same in any order."""
    generator = torch.Generator().manual_seed(4)
    kinds = _C.Optimizer
    for optimizer, num_states, width in (
        (kinds.sgd, 0, 1),
        (kinds.adagrad, 1, 33),
        (kinds.adam, 2, 4),
    ):
        weights = torch.randint(5, (23, width), generator=generator).float()
        table = table_of(weights, split(23, "mixed"), Group.current(device=device))
        trained = TrainedTable(table)
        states = [trained.new_state(0.25) for _ in range(num_states)]
        rule = _C.UpdateRule(optimizer=optimizer, step_size=0.5, eps=0.5, beta1=0.5, beta2=0.5)
        rows = torch.randint(23, (90,), generator=generator).to(device)
        grads = torch.randint(-3, 4, (90, width), generator=generator).float().to(device)
        trained.update([coalesce(SparseRows(rows, grads))], rule, states)
        for updated in (table, *states):
            yield updated.read()
            updated.close()


@case("scatter_lists_kernel", "gather_lists_kernel", "degrees_kernel", "copy_rows")
def store(device: torch.device) -> Iterator[Tensor]:
    with build(homogeneous_source(), "mixed", device=device) as built:
        yield built.edge_index()
        yield from built.read_csc(start=7, stop=41)
        yield built.node_table("x").gather(torch.arange(60, device=device))


@case("exact_products_kernel", "rank_products_kernel")
def exact_inner_products(device: torch.device) -> Iterator[Tensor]:
    """All storages, with scales in the rows and apart, and widths that lanes do not fill."""
    group = Group.current(device=device)
    ids = random_ids(90, (5, 7), torch.int64).to(device)
    ids[2, 3:] = -1
    for dtype in FLOATS:
        for columns in (1, 31, 40, 128):
            queries = values((5, columns), torch.float64, 1).to(device)
            x = values((90, columns), dtype)
            table = table_of(x, split(90, "mixed"), group)
            yield exact_products(table, ids, queries)
            yield from ranked_products(table, queries)
            table.close()
            for storage in STORAGES:
                for apart in (False, True) if storage.startswith("int8") else (False,):
                    if not is_narrow(storage, dtype):
                        continue
                    table = narrow_table(x, storage, split(90, "on gpus"), group, apart=apart)
                    yield exact_products(table, ids, queries)
                    yield from ranked_products(table, queries)
                    table.close()


def ranked_products(table: Table, queries: Tensor) -> Iterator[Tensor]:
    """More and fewer rows than there are results, many of them equal."""
    places = random_ids(90, (5, 300), torch.int64).to(queries.device)
    counts = torch.tensor([300, 0, 1, 37, 64], dtype=torch.int32, device=queries.device)
    for ids in (None, torch.arange(90).flip(0).int(), torch.arange(90) * 7 % 90):
        user_ids = None if ids is None else ids.to(queries.device)
        candidates = Candidates(places, counts, 300, counts[:0])
        yield from largest_products(table, candidates, user_ids, queries, 50)


@case(
    "large_products_kernel",
    "large_products_wgmma_kernel",
    "keep_largest_kernel",
    "round_queries_kernel",
)
def large_products(device: torch.device) -> Iterator[Tensor]:
    """All kinds and widths of rows; whole numbers, whose sums are exact in any order."""
    for storage, dtype in (("int8", torch.float32), (None, torch.bfloat16), (None, torch.float16)):
        for columns in (32, 64, 128, 256):
            generator = torch.Generator().manual_seed(columns)
            x, queries = (
                torch.randint(-9, 10, (rows, columns), generator=generator).double()
                for rows in (2700, 37)
            )
            x[:, 0] = queries[:, 0] = 127  # so that a scale is 1
            codec = None if storage is None else codec_of(storage, dtype, (columns,))
            stored = x.to(device, dtype)
            if codec is not None:
                stored = RowEncoder(codec, "x").encode(stored, 0)
            # Two pieces, of several stages; an eighth of the pairs is excluded.
            pieces = [LocalRows(n, 1, stored[n:end], codec) for n, end in ((0, 1900), (1900, 2700))]
            excluded = torch.arange(0, 37 * 2700, 8, device=device)
            for guesses in (False, True):
                search = ProductFilter(queries.to(device), 30, dtype, 600, guesses)
                result = search.search(pieces, excluded, 2700)
                assert not result.open_queries.numel()
                # A kernel may find more than another.
                rows = x.to(device)[result.places[:, : result.most].clamp(0, 2699)]
                products = (rows @ queries.to(device)[:, :, None]).squeeze(2)
                is_row = torch.arange(result.most, device=device) < result.counts[:, None]
                yield torch.where(is_row, products, -torch.inf).topk(30).values


@case("signal_flag", "wait_for_flag")
def flags(device: torch.device) -> Iterator[Tensor]:
    """A flag that is waited for after it was raised, as counts that pass 2^31, too."""
    given_up = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
    launch = launch_on(device)
    for value in (1, 3, 2**31 + 5):
        flag = torch.zeros(1, dtype=torch.int32, device=device)
        _C.signal_flag(flag.data_ptr(), value, launch)
        _C.wait_for_flag(flag.data_ptr(), value, 20.0, given_up.data_ptr(), launch)
        yield flag
    yield given_up


@case("digest_pieces")
def digests_of_content(device: torch.device) -> Iterator[Tensor]:
    """Several pieces, parts of a piece, addresses that vectors do not fit, and many tensors."""
    values = random_rows((1, 70_001), torch.uint8).view(-1).to(device)
    parts = [values[begin:end] for begin, end in ((0, 70_001), (16, 33_000), (4, 40_000), (3, 9))]
    parts += [values[i : 2 * i] for i in range(40)]
    count = sum(_C.count_content_pieces(parts))
    digests = torch.zeros((count, 2), dtype=torch.int64, device=device)
    content = _C.Content(tensors=parts, are_edge_indices=[True] * len(parts), digests=digests)
    content.write(launch_on(device))
    yield digests
    assert content.is_unchanged(launch_on(device))
    yield digests
