"""Exact top-k of inner products with all rows of a table that the ranks share.

    python benchmarks/top_k.py --world 4 --rows 100e6 --storages int8,bfloat16 --peers torch
    python benchmarks/top_k.py --device cpu --world 1 --rows 1e6 --peers torch

The peer multiplies a rank's share of the rows, as a plain tensor, with all queries, block by block,
takes `torch.topk` of each block and merges; its products are rounded to the dtype of the tensor,
and nothing is sent between ranks. `floor_ms` is the time of the products on the tensor cores or of
the bytes of the rows in memory, whichever is longer, at the rates that the GPU has in this run: of
large products of random numbers by torch, and of a copy.
`--profile` prints the kernels of one call, gaps between them, and the host's calls and waits.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

import torch
from harness.common import integers, main, measure, parser, words
from harness.gpu_time import gpu_ms
from harness.kernel_times import timeline
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import feature_rows, fill_features
from inputs.feature_tables import FULL, TIERS, feature_table
from torch import Tensor

import peergraph
from peergraph.memory import Table

_QUERY_SETS = 4
_CHECKED = 2  # queries
_BLOCK_ELEMENTS = 1 << 26


def query_sets(session: Session, count: int) -> list[Tensor]:
    """Queries of this rank: rows that the table does not have."""
    args = session.args
    begin = args.rows + session.rank * count
    step = count * session.world
    return [
        feature_rows(
            torch.arange(begin + i * step, begin + i * step + count, device=session.device),
            args.dim,
        )
        for i in range(_QUERY_SETS)
    ]


def blockwise(rows: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest products of each query, and the rows."""
    values = torch.empty((len(queries), 0), dtype=rows.dtype, device=rows.device)
    ids = torch.empty((len(queries), 0), dtype=torch.int64, device=rows.device)
    step = max(1, _BLOCK_ELEMENTS // len(queries))
    for begin in range(0, len(rows), step):
        block = rows[begin : begin + step]
        best, where = (queries @ block.T).topk(min(k, len(block)), dim=1)
        values = torch.cat([values, best], 1)
        ids = torch.cat([ids, where + begin], 1)
        values, order = values.topk(min(k, values.shape[1]), dim=1)
        ids = ids.gather(1, order)
    return values, ids


def check(session: Session, table: Table, queries: Tensor, k: int) -> None:
    """Compares some queries with products in float64 of gathered rows. Collective."""
    result = peergraph.top_k(table, queries, k)

    def compare() -> None:
        few = queries[:_CHECKED].double()
        best = torch.empty((len(few), 0), dtype=torch.float64, device=queries.device)
        for begin in range(0, table.rows, 1 << 20):
            ids = torch.arange(begin, min(begin + (1 << 20), table.rows), device=queries.device)
            products = few @ table.gather(ids).double().T
            best = torch.cat([best, products], 1).topk(min(k, best.shape[1] + len(ids)), 1).values
        torch.testing.assert_close(result.values[: len(few)].double(), best, rtol=1e-6, atol=1e-6)

    session.together(compare)


def profile(session: Session, table: Table, queries: Tensor, k: int, timing: Timing) -> None:
    """Prints what rank 0 does in one call. Collective."""
    lines = timeline(lambda: peergraph.top_k(table, queries, k))
    if session.rank == 0:
        print(f"top {k}: {timing.ms:.2f} ms a call, of which the host takes {timing.host_ms:.2f}")
        print("\n".join(lines), flush=True)


def products_a_ms(device: torch.device) -> dict[str, float]:
    """The multiplications and additions of large products on this GPU, by the storage of rows."""
    size = 8192
    left, right = (torch.randint(-127, 128, (size, size), device=device) for _ in range(2))
    byte_factors = left.to(torch.int8), right.to(torch.int8).T
    half_factors = (left / 127).bfloat16(), (right / 127).bfloat16().T
    return {
        "int8": 2 * size**3 / gpu_ms(lambda: torch._int_mm(*byte_factors)),
        "other": 2 * size**3 / gpu_ms(lambda: torch.mm(*half_factors)),
    }


def bytes_a_ms(device: torch.device) -> float:
    """The bytes that a copy in the memory of this GPU reads and writes."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / gpu_ms(lambda: target.copy_(source))


def floors(session: Session) -> dict[str, tuple[float, float]]:
    """Operations and bytes a ms of this machine's tensor cores and memory, by storage."""
    if session.device.type != "cuda":
        return {}
    moved = bytes_a_ms(session.device)
    rates = {name: (rate, moved) for name, rate in products_a_ms(session.device).items()}
    torch.cuda.empty_cache()
    if session.rank == 0:
        for name, (rate, _) in rates.items():
            print(f"products of {name} rows: {rate / 1e9:.0f} 10^12 operations a second")
        print(f"copies in memory: {moved / 1e6:.0f} GB/s", flush=True)
    return rates


def floor_ms(
    args: argparse.Namespace, world: int, rates: tuple[float, float] | None, row_bytes: int
) -> float | None:
    if rates is None:
        return None
    products = 2 * args.queries * args.rows * args.dim / rates[0]
    return max(products, args.rows * row_bytes / rates[1]) / world


def run(session: Session) -> None:
    args = session.args
    count = -(-args.queries // session.world)
    queries, rates = query_sets(session, count), floors(session)
    for plan in args.plans:
        for storage in args.storages:
            system = "peergraph" if storage == FULL else f"peergraph {storage}"
            with (
                session.section(f"{plan} {storage}", system=system, plan=plan),
                closing(feature_table(session, plan, args.rows, args.dim, storage)) as table,
            ):
                for k in args.k:
                    check(session, table, queries[0], k)
                    timing = measure(
                        session,
                        lambda i, _, t=table, n=k: peergraph.top_k(t, queries[i % _QUERY_SETS], n),
                    )
                    rate = rates.get("int8" if storage == "int8" else "other")
                    floor = floor_ms(args, session.world, rate, table.row_bytes)
                    add(session, timing, system, k, plan=plan, floor_ms=floor)
                    if args.profile:
                        profile(session, table, queries[1], k, timing)
    if session.wants("torch"):
        for dtype in args.torch_dtypes:
            with session.section(f"torch {dtype}", system="torch"):
                run_torch(session, getattr(torch, dtype), queries)


def run_torch(session: Session, dtype: torch.dtype, queries: list[Tensor]) -> None:
    args = session.args
    count = args.rows // session.world
    rows = torch.empty(count, args.dim, dtype=dtype, device=session.device)
    step = 1 << 20
    for begin in range(0, count, step):
        part = torch.empty(min(step, count - begin), args.dim, device=session.device)
        rows[begin : begin + step] = fill_features(session.rank * count + begin, part)
    everyone = [q.repeat(session.world, 1).to(dtype) for q in queries]
    for k in args.k:
        timing = measure(session, lambda i, _, n=k: blockwise(rows, everyone[i % _QUERY_SETS], n))
        name = str(dtype).removeprefix("torch.")
        add(session, timing, f"torch {name}", k, against=args.plans[0])


def add(session: Session, timing: Timing, system: str, k: int, **fields: object) -> None:
    args = session.args
    session.recorder.add(
        timing,
        system=system,
        dim=args.dim,
        batch=args.queries,
        setting=f"top {k}",
        table_rows=args.rows,
        **fields,
    )


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], list(TIERS), "sharded")
    result.add_argument("--rows", type=lambda text: int(float(text)), default="1e7")
    result.add_argument("--dim", type=int, default=128)
    result.add_argument("--queries", type=int, default=1000, help="of all ranks together")
    result.add_argument("--k", type=integers, default="100")
    result.add_argument("--storages", type=words, default=FULL, help="float32,bfloat16,int8,...")
    result.add_argument("--torch-dtypes", type=words, default="float32,bfloat16")
    result.add_argument("--profile", action="store_true", help="kernels of one call; on GPUs")
    return result


if __name__ == "__main__":
    sys.exit(main("top_k", run, arguments(), peers=("torch",)))
