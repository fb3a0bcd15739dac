"""Counts bytes between machines for the mini-batches of a loader, beside WholeGraph's gathers.

    python benchmarks/network_bytes.py --data ogbn_arxiv_gptfeat.npz --out records.jsonl

Ranks of several machines on this one (by PEERGRAPH_HOSTID) iterate PyG's NeighborLoader over a
graph with ``machines="shard"``, on the CPU. Ours are the store's own counters: ids, rows, numbers
of rows and the headers of each round, which is one mini-batch of each rank or, with more
`--batches-per-exchange`, several. WholeGraph's are computed from the ids of the same mini-batches
(network/gather_bytes.py says how). `cold` is the least that any exchange sends for this share of
hot rows: of each machine and round the distinct rows that it does not have, without ids.
`predicted_rows` is what `peergraph plan` expects by the nodes' out-degrees and the mean size of the
mini-batches.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from harness.common import floats, integers
from harness.markdown import table
from harness.records import append_records
from inputs.graphs import get_spec, make_csc
from network.gather_bytes import Layout, Sent, distinct_rows, distributed, hierarchy
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.memory import Group
from peergraph.store.placement.cost_model import HitRateCurve
from peergraph.testing import run_ranks

_COLUMNS = ["system", "hot_ratio", "batches_per_exchange", "rows", "mb", "over_cold", "over_ours"]
_COLUMNS += ["predicted_rows"]
Batch = tuple[Tensor, Tensor]


def read_graph(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets and in-neighbours of a graph of one type, and its training nodes."""
    with np.load(path, allow_pickle=False) as file:
        indptr = torch.from_numpy(file["indptr"]).long()
        indices = torch.from_numpy(file["indices"]).long()
        return indptr, indices, torch.from_numpy(file["train_mask"]).nonzero().squeeze(1)


def made_graph(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The same of a synthetic graph; every tenth node is of training."""
    spec = get_spec(name)
    indptr, indices = make_csc(spec, "cpu")
    return indptr.long(), indices.long(), torch.arange(0, spec.num_nodes, 10)


def rank_batches(
    graph: tuple[Tensor, Tensor, Tensor],
    args: argparse.Namespace,
    hot_ratio: float,
    batches_per_exchange: int,
) -> tuple[list[Batch], dict[str, int]]:
    """One rank: ids of its mini-batches, and those that other machines have; its counters."""
    rank = dist.get_rank()
    os.environ["PEERGRAPH_HOSTID"] = str(rank // args.ranks)
    indptr, indices, train = graph
    count = indptr.numel() - 1
    destinations = torch.arange(count).repeat_interleave(indptr.diff())
    x = torch.arange(count, dtype=torch.float32)[:, None].expand(count, args.dim).contiguous()
    data = Data(x=x, edge_index=torch.stack([indices, destinations]), num_nodes=count)
    first = Group.current(device="cpu").machines.is_first_rank
    shared = peergraph_pyg.share(
        data if first else None,
        device="cpu",
        machines="shard",
        hot_ratio=hot_ratio,
        batches_per_exchange=batches_per_exchange,
    )
    store = peergraph_pyg.store_of(shared)
    table: Any = store.node_table("x")
    torch.manual_seed(rank)
    mine = train[torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))]
    mine = mine[rank :: args.machines * args.ranks][: args.batch * args.batches]
    loader = NeighborLoader(shared, args.fanout, input_nodes=mine, batch_size=args.batch)
    nodes = []
    for batch in loader:
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        nodes.append((batch.n_id, batch.n_id[table.is_remote(batch.n_id)]))
    dist.barrier()
    traffic = store.network_traffic()
    store.close()
    return nodes, {"rows": traffic.rows_received, "bytes": traffic.bytes_sent}


def steps_of(ranks: list[list[Batch]]) -> list[list[Batch]]:
    """Mini-batches of all ranks by step; ranks that have finished have empty ones."""
    empty = torch.empty(0, dtype=torch.int64)
    count = max(map(len, ranks))
    return [[b[t] if t < len(b) else (empty, empty) for b in ranks] for t in range(count)]


def rounds_of(steps: list[list[Tensor]], per_round: int) -> Iterator[list[Tensor]]:
    """The ids of all ranks by round."""
    for first in range(0, len(steps), per_round):
        yield [torch.cat(ids) for ids in zip(*steps[first : first + per_round], strict=True)]


def predicted_rows(
    graph: tuple[Tensor, Tensor, Tensor],
    steps: list[list[Batch]],
    layout: Layout,
    hot: float,
    per_round: int,
) -> float:
    """Cold rows of other machines in all steps, as `peergraph plan` expects them."""
    indptr, indices, _ = graph
    count = indptr.numel() - 1
    heat = torch.bincount(indices, minlength=count).sort(descending=True).values
    batches = [ids.numel() for step in steps for ids, _ in step if ids.numel()]
    reads = sum(batches) / len(batches)
    together = layout.ranks * per_round
    one = HitRateCurve.of(heat).distinct_rows(reads, together, round(hot * count))
    # Of each machine and round, the share of the other machines.
    return one * (layout.machines - 1) / layout.machines * len(batches) / together


def compare(
    graph: tuple[Tensor, Tensor, Tensor], args: argparse.Namespace, name: str
) -> list[dict[str, Any]]:
    """A record for each system, share of hot rows and number of mini-batches of a round."""
    layout = Layout(args.machines, args.ranks, graph[0].numel() - 1)
    row_bytes, records = 4 * args.dim, list[dict[str, Any]]()
    whole: dict[str, Sent] = {}
    for hot_ratio, per_round in product(args.hot_ratios, args.batches_per_exchange):
        results = run_ranks(
            rank_batches,
            layout.world_size,
            *(graph, args, hot_ratio, per_round),
            timeout_s=args.timeout,
        )
        steps = steps_of([batches for batches, _ in results])
        ids = [[mine for mine, _ in step] for step in steps]
        remote = [[other for _, other in step] for step in steps]
        cold = sum(
            distinct_rows(of_round, layout, lambda rows, machine: rows)
            for of_round in rounds_of(remote, per_round)
        )
        ours = {key: sum(counts[key] for _, counts in results) for key in ("rows", "bytes")}
        assert ours["rows"] == cold, (ours, cold)
        if not whole:
            for system, sent in (("distributed", distributed), ("hierarchy", hierarchy)):
                whole[system] = sum((sent(step, layout) for step in ids), Sent(0, 0))
        rows = {"peergraph": (cold, ours["bytes"])}
        if per_round == args.batches_per_exchange[0]:
            rows |= {
                f"wholegraph {system}": (sent.rows, sent.num_bytes(row_bytes, 8))
                for system, sent in whole.items()
            }
        base = {"bench": "network_bytes", "graph": name, "machines": args.machines,
                "ranks": args.ranks, "dim": args.dim, "batch": args.batch,
                "fanout": "-".join(map(str, args.fanout)), "steps": len(steps)}  # fmt: skip
        for system, (count, num_bytes) in rows.items():
            record = {**base, "system": system, "hot_ratio": hot_ratio,
                      "batches_per_exchange": per_round if system == "peergraph" else 1,
                      "rows": count,
                      "bytes": num_bytes, "mb": num_bytes / 1e6}  # fmt: skip
            if cold:
                record["over_cold"] = num_bytes / (cold * row_bytes)
                record["over_ours"] = num_bytes / ours["bytes"]
            if system == "peergraph":
                expected = predicted_rows(graph, steps, layout, hot_ratio, per_round)
                record["predicted_rows"] = round(expected)
            records.append(record)
    return records


def _text(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(
        value, int) else str(value)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="an .npz file of a graph of one type")
    parser.add_argument("--graph", default="tiny", help="a synthetic one, without --data")
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="of each machine")
    parser.add_argument("--dim", type=int, default=128, help="float32 columns")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=4, help="of each rank, at most")
    parser.add_argument("--fanout", type=integers, default="15,10,5")
    parser.add_argument("--hot-ratios", type=floats, default="0,0.1,0.25")
    parser.add_argument(
        "--batches-per-exchange", type=integers, default="1", help="of a store, each"
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the ranks")
    parser.add_argument("--out", type=Path, help="file that JSON lines are appended to")
    args = parser.parse_args()
    graph = made_graph(args.graph) if args.data is None else read_graph(args.data)
    records = compare(graph, args, args.graph if args.data is None else args.data.stem)
    lines = [[_text(record.get(column, "")) for column in _COLUMNS] for record in records]
    print("\n".join(table(_COLUMNS, lines)))
    append_records(args.out, records)
    return 0


if __name__ == "__main__":
    sys.exit(main())
