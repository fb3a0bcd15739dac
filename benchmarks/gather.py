"""Gathers random rows of one table on all ranks at once, for each plan and width.

    python benchmarks/gather.py --world 4 --plans replicated,sharded --peers wholegraph,nccl,torch

Peers: `wholegraph` (chunked and continuous memory, on the devices and on the host), `nccl` (the
five-step gather by collectives), `torch` (index_select on a rank's own memory, and a plain copy of
as many bytes, which is the limit of a gather from own memory).

With `--storages bfloat16,int8`, tables with narrow storage are gathered, too: `ratio` is their time
over that of float32 rows, `floor_ms` the time of their bytes on the links at `--floor-gbs`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch
from harness.common import integers, main, measure, parser, words
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import check_rows, feature_rows, fill_features, random_ids
from inputs.counter_hash import CHUNK
from inputs.feature_tables import TIERS, check_table, feature_table

from peergraph.reference.gather import five_step_gather

_ID_SETS = 4


def table_rows(args: argparse.Namespace, plan: str, world: int, dim: int) -> int:
    """Rows of the table of a plan: each device holds --table-gib of it, the host --host-gib."""
    gib = {
        "replicated": args.table_gib,
        "sharded": args.table_gib * world,
        "host": args.host_gib,
    }[plan]
    return max(world, int(gib * 2**30) // (4 * dim))


def time_gather(
    session: Session,
    name: str,
    rows: int,
    dim: int,
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> Timing:
    """Checks a gather, then times it on rotating sets of ids, another one for each rank."""
    ids = [
        random_ids(session.rank * 1000 + i, session.args.count, rows, session.device)
        for i in range(_ID_SETS)
    ]
    session.together(lambda: check_rows(name, gather(ids[0]), ids[0]))
    return measure(session, lambda i, _: gather(ids[i % _ID_SETS]), hold=True)


def run_peergraph(session: Session, plan: str, dim: int) -> None:
    rows = table_rows(session.args, plan, session.world, dim)
    with (
        session.section(f"peergraph {plan} {dim}", system="peergraph", plan=plan, dim=dim),
        closing(feature_table(session, plan, rows, dim)) as table,
    ):
        timing = time_gather(session, f"peergraph {plan}", rows, dim, table.gather)
        add(session, "peergraph", timing, dim, plan=plan, table_rows=rows)


def run_narrow(session: Session, plan: str, dim: int, storage: str) -> None:
    """As run_peergraph, with fewer bytes a row and the same rows for users."""
    rows, args = table_rows(session.args, plan, session.world, dim), session.args
    system = f"peergraph {storage}"
    with (
        session.section(f"{system} {plan} {dim}", system=system, plan=plan, dim=dim),
        closing(feature_table(session, plan, rows, dim, storage)) as table,
    ):
        ids = [
            random_ids(session.rank * 1000 + i, args.count, rows, session.device)
            for i in range(_ID_SETS)
        ]
        session.together(lambda: check_table(system, table, ids[0]))
        timing = measure(session, lambda i, _: table.gather(ids[i % _ID_SETS]), hold=True)
        add(
            session,
            system,
            timing,
            dim,
            plan=plan,
            against=plan,
            table_rows=rows,
            row_bytes=table.row_bytes,
            floor_ms=floor_ms(args, plan, session.world, table.row_bytes, dim),
        )


def floor_ms(
    args: argparse.Namespace, plan: str, world: int, row_bytes: int, dim: int
) -> float | None:
    """The time of a gather's bytes: on the link that a plan reads by, or in the GPU's memory."""
    if len(args.floor_gbs) != len(TIERS):
        return None
    memory, peers, host = (rate * 1e6 for rate in args.floor_gbs)
    read, written = args.count * row_bytes, args.count * dim * 4
    by_link = {
        "replicated": 0.0,
        "sharded": read * (world - 1) / world / peers,
        "host": read / host,
    }[plan]
    return max(by_link, (read + written) / memory)


def run_wholegraph(session: Session, plan: str, dim: int) -> None:
    peer = session.wholegraph
    location = "cpu" if plan == "host" else "cuda"
    rows = table_rows(session.args, plan, session.world, dim)
    for kind in session.args.wholegraph_kinds:
        system = f"wholegraph {kind}"
        with session.section(f"{system} {location} {dim}", system=system, dim=dim):
            table = peer.table(kind, location, rows, dim)
            timing = time_gather(session, system, rows, dim, partial(peer.gather, table))
            add(session, system, timing, dim, plan=location, against=plan, table_rows=rows)
            peer.drop_table(table)


def run_collectives(session: Session, dim: int) -> None:
    world, rank = session.world, session.rank
    rows = table_rows(session.args, "sharded", world, dim)
    with session.section(f"nccl {dim}", system="nccl", dim=dim):
        # Rows are dealt to the ranks in turn, as in a sharded table.
        own = torch.arange(rank, rows, world, device=session.device)
        shard = torch.empty(own.numel(), dim, device=session.device)
        step = max(1, CHUNK // dim)
        for part, ids in zip(shard.split(step), own.split(step), strict=True):
            part.copy_(feature_rows(ids, dim))
        gather = partial(five_step_gather, shard)
        timing = time_gather(session, "nccl", rows, dim, gather)
        add(session, "nccl five steps", timing, dim, against="sharded", table_rows=rows)


def run_torch(session: Session, dim: int) -> None:
    rows = table_rows(session.args, "replicated", session.world, dim)
    with session.section(f"torch {dim}", system="torch", dim=dim):
        local = fill_features(0, torch.empty(rows, dim, device=session.device))
        timing = time_gather(
            session, "torch", rows, dim, lambda ids: torch.index_select(local, 0, ids)
        )
        add(session, "torch index_select", timing, dim, against="replicated", table_rows=rows)
        count = min(session.args.count, rows)
        sources = [local[i * (rows - count) // _ID_SETS :][:count] for i in range(_ID_SETS)]
        target = torch.empty(count, dim, device=session.device)
        timing = measure(session, lambda i, _: target.copy_(sources[i % _ID_SETS]), hold=True)
        add(session, "copy", timing, dim, against="replicated", count=count)


def add(session: Session, system: str, timing: Timing, dim: int, **fields: object) -> None:
    count = fields.pop("count", session.args.count)
    session.recorder.add(
        timing, system=system, dim=dim, count=count, bytes=count * dim * 4, **fields
    )


def run(session: Session) -> None:
    args = session.args
    for dim in args.dims:
        for plan in args.plans:
            if plan == "host" and dim not in args.host_dims:
                continue
            run_peergraph(session, plan, dim)
            for storage in args.storages:
                run_narrow(session, plan, dim, storage)
            # On one rank replicated and sharded tables are alike: one comparison will do.
            if session.wholegraph is not None and plan != "replicated":
                run_wholegraph(session, plan, dim)
        if session.wants("nccl") and session.world > 1:
            run_collectives(session, dim)
        if session.wants("torch"):
            run_torch(session, dim)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], tuple(TIERS), "replicated,sharded,host")
    result.add_argument("--dims", type=integers, default="16,64,100,128,256,602,1024")
    result.add_argument(
        "--host-dims", type=integers, default="64,128,1024", help="of the host plan"
    )
    result.add_argument("--count", type=int, default=1 << 20, help="rows gathered at a time")
    result.add_argument("--table-gib", type=float, default=8.0, help="on each device")
    result.add_argument("--host-gib", type=float, default=4.0, help="on the host, in all")
    result.add_argument("--storages", type=words, default="", help="bfloat16, int8 and so on")
    result.add_argument(
        "--floor-gbs",
        type=integers,
        default="",
        help="GB/s of a GPU's memory, of all its links to GPUs, and of the host's: 4000,370,55",
    )
    result.add_argument("--wholegraph-kinds", type=words, default="chunked,continuous")
    return result


if __name__ == "__main__":
    sys.exit(main("gather", run, arguments(), peers=("wholegraph", "nccl", "torch")))
