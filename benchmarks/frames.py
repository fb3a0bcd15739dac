"""The loader over a database of typed tables, beside PyTorch Frame's indexing of the same batches.

    python benchmarks/frames.py --world 4 --rows 500000000 --deadline 1500
    python benchmarks/frames.py --world 2 --device cpu --rows 200000

A random database of ten tables, made on the GPUs: numbers, categories, a time, an embedding and
tokens in each row, and keys with a hub here and there. PyG's unmodified NeighborLoader with the
batch and fanouts of RelBench's example gives frames of the nodes. Beside it: samples without
frames, training with the loader and on batches in memory, the memory of a rank that is not the
store's, and PyTorch Frame on one CPU thread, whose frames have at most `--peer-rows` rows a table
(smaller ones than the database's, which favours it); the ratio is to eight such workers, without
the time of their sampling.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from harness.common import Mark, integers, main, measure, parser
from harness.ranks import Session
from harness.records import Timing
from inputs.counter_hash import hash_range, stream_key
from rgat_shape.edges import make_csc
from rgat_shape.graph import Relation, TypedGraph
from torch import Tensor, nn
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv

from peergraph.store import (
    VALUES,
    EdgeSource,
    FrameField,
    FrameSpec,
    GraphSource,
    RowSource,
    Store,
    list_type,
)
from peergraph_pyg import EdgeIndexTensor, StoredFrame, accelerate

_SEED, _WORKERS, _SEEDS = 20261130, 8, 64
_SHARES = {
    **{"user": 0.08, "item": 0.05, "shop": 0.02, "address": 0.05, "order": 0.2},
    **{"line": 0.3, "visit": 0.2, "review": 0.05, "payment": 0.04, "coupon": 0.01},
}
_KEYS = (
    *(("order", "user"), ("order", "address"), ("line", "order"), ("line", "item")),
    *(("visit", "user"), ("visit", "item"), ("review", "user"), ("review", "item")),
    *(("payment", "order"), ("coupon", "shop"), ("item", "shop")),
)
_NUMBERS, _CATEGORIES, _WIDTH, _VALUES, _TOKENS = 4, 3, 16, 100, 10_000
_LENGTHS = (0, 3, 5, 8, 8, 10, 13, 17)
"""Of the lists of tokens of eight rows."""
_TOKENS_FIELD = FrameField("text_tokenized", "input_ids", "lists")
_SPEC = FrameSpec(
    {
        "numerical": tuple(f"n{i}" for i in range(_NUMBERS)),
        "categorical": tuple(f"c{i}" for i in range(_CATEGORIES)),
        "timestamp": ("t",),
        "embedding": ("e",),
        "text_tokenized": ("w",),
    },
    (
        FrameField("numerical", None, "dense"),
        FrameField("categorical", None, "dense"),
        FrameField("timestamp", None, "dense"),
        FrameField("embedding", None, "joined", (0, _WIDTH)),
        _TOKENS_FIELD,
    ),
)


def database(rows: int) -> TypedGraph:
    """Returns the tables and keys of a database of so many rows."""
    nodes = {table: max(8, int(rows * share)) for table, share in _SHARES.items()}
    relations = tuple(
        Relation((table, f"f2p_{other}", other), nodes[table], (0.0, 0.4)) for table, other in _KEYS
    )
    return TypedGraph(f"{rows:,} rows", nodes, relations, "user")


def bounds(rows: Tensor) -> Tensor:
    """Returns where the tokens of rows begin."""
    first = torch.tensor([0, *accumulate(_LENGTHS)], device=rows.device)
    return rows // len(_LENGTHS) * sum(_LENGTHS) + first[rows % len(_LENGTHS)]


def num_tokens(rows: int) -> int:
    """Returns the number of tokens of a table."""
    return int(bounds(torch.tensor(rows, device="cpu")))


def fields(tag: int, device: torch.device) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Returns the shape of a row, the dtype, and a function of the rows of each field."""

    def hashed(number: int, width: int, begin: int, end: int) -> Tensor:
        key = stream_key(_SEED, 8 * tag + number)
        return hash_range(key, begin * width, end * width, device).view(end - begin, width)

    def floats(number: int, width: int) -> Callable[[int, int], Tensor]:
        return lambda begin, end: (hashed(number, width, begin, end) >> 40).float() * 2.0**-22

    def numbers(number: int, width: int, most: int) -> Callable[[int, int], Tensor]:
        return lambda begin, end: hashed(number, width, begin, end) % most

    return {
        "numerical": ((_NUMBERS,), torch.float32, floats(0, _NUMBERS)),
        "categorical": ((_CATEGORIES,), torch.int64, numbers(1, _CATEGORIES, _VALUES)),
        "timestamp": ((1, 7), torch.int64, lambda *at: numbers(2, 7, 60)(*at).unsqueeze(1)),
        "embedding": ((_WIDTH,), torch.float32, floats(3, _WIDTH)),
        "text_tokenized.input_ids": (
            (2,),
            torch.int64,
            lambda begin, end: bounds(torch.arange(begin, end + 1, device=device)).unfold(0, 2, 1),
        ),
        VALUES: ((), torch.int64, lambda *at: numbers(4, 1, _TOKENS)(*at).view(-1)),
    }


def make_source(graph: TypedGraph, session: Session) -> GraphSource:
    """Returns this rank's part of the database."""
    rank, world, device = session.rank, session.world, session.device
    nodes = dict(graph.nodes)
    lists = {t: list_type(t, _TOKENS_FIELD.table("tf")) for t in graph.nodes}
    nodes.update({lists[t]: num_tokens(n) for t, n in graph.nodes.items()})
    ranges = {t: (n * rank // world, n * (rank + 1) // world) for t, n in nodes.items()}
    edges = {
        stored.type: EdgeSource(csc=make_csc(graph, stored, ranges[stored.type[2]], device))
        for stored in graph.stored
    }
    tables: dict[str, dict[str, Any]] = {t: {} for t in nodes}
    for tag, table in enumerate(graph.nodes):
        for name, (shape, dtype, rows) in fields(tag, device).items():
            kind = lists[table] if name == VALUES else table
            count = ranges[kind][1] - ranges[kind][0]
            source = RowSource((count, *shape), dtype, rows)
            tables[kind][name if name == VALUES else f"tf.{name}"] = source
    frames = {t: {"tf": _SPEC} for t in graph.nodes}
    return GraphSource(nodes, edges, tables, node_range=ranges, frames=frames)


def plain_frame(tag: int, rows: int) -> TensorFrame:
    """Returns the first rows of a table as PyTorch Frame has them, on the CPU."""
    parts = {name: rows_of for name, (_, _, rows_of) in fields(tag, torch.device("cpu")).items()}
    values = {name: parts[name](0, rows) for name in ("numerical", "categorical", "timestamp")}
    offset = bounds(torch.arange(rows + 1, device="cpu"))
    tokens = MultiNestedTensor(rows, 1, parts[VALUES](0, int(offset[-1])), offset)
    embedding = MultiEmbeddingTensor.from_tensor_list([parts["embedding"](0, rows)])
    columns = {stype(name): list(names) for name, names in _SPEC.columns.items()}
    features = {stype(name): value for name, value in values.items()}
    features[stype.embedding] = embedding
    features[stype.text_tokenized] = {"input_ids": tokens}
    return TensorFrame(features, columns)


class Encoder(nn.Module):
    """Encodes the columns of a table."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.numbers = nn.Linear(_NUMBERS + 7 + _WIDTH, channels)
        self.categories = nn.EmbeddingBag(_VALUES * _CATEGORIES, channels)
        self.tokens = nn.EmbeddingBag(_TOKENS, channels, include_last_offset=True)
        self.register_buffer("first", torch.arange(_CATEGORIES) * _VALUES)

    def forward(self, tf: TensorFrame) -> Tensor:
        columns, tokens = tf.feat_dict, tf.feat_dict[stype.text_tokenized]["input_ids"]
        times = columns[stype.timestamp][:, 0] / 60
        numbers = [columns[stype.numerical], times, columns[stype.embedding].values]
        rows = self.numbers(torch.cat(numbers, 1))
        rows = rows + self.categories(columns[stype.categorical] + self.first)
        result: Tensor = rows + self.tokens(tokens.values, tokens.offset)
        return result


class Model(nn.Module):
    """RelBench's shape: an encoder for each table, and SAGE on all relations."""

    def __init__(self, graph: TypedGraph, channels: int, layers: int) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({t: Encoder(channels) for t in graph.nodes})
        self.convs = nn.ModuleList(
            HeteroConv({t: SAGEConv(channels, channels) for t in graph.edge_types}, "sum")
            for _ in range(layers)
        )
        self.head = nn.Linear(channels, 1)

    def forward(self, batch: Any) -> Tensor:
        x = {t: self.encoders[t](batch[t].tf) for t in batch.node_types}
        for conv in self.convs:
            # Types without edges into them keep their rows.
            x = {**x, **{t: rows.relu() for t, rows in conv(x, batch.edge_index_dict).items()}}
        result: Tensor = self.head(x["user"][: batch["user"].batch_size])
        return result


def anonymous_mib() -> float:
    """Returns the memory of this process that no other one maps, and no file."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def data_of(store: Store, graph: TypedGraph, with_frames: bool) -> HeteroData:
    """What peergraph_pyg.share returns, over a store that was made from parts of all ranks."""
    data = HeteroData()
    for table, count in graph.nodes.items():
        data[table].num_nodes = count
        if with_frames:
            data[table].tf = StoredFrame(store, table, "tf")
    for edge_type in graph.edge_types:
        data[edge_type].edge_index = EdgeIndexTensor(store, edge_type)
    return data


def batches_of(session: Session, data: HeteroData) -> Iterator[Any]:
    """Yields batches of this rank's seeds without end."""
    args, users = session.args, data["user"].num_nodes
    random = torch.Generator().manual_seed(session.rank)
    seeds = torch.randint(users, (_SEEDS * args.batch,), generator=random)
    loader = NeighborLoader(
        data, args.fanouts, input_nodes=("user", seeds), batch_size=args.batch, shuffle=True
    )
    while True:
        yield from loader


def run(session: Session) -> None:
    args = session.args
    graph = database(args.rows)
    with session.stage("rows and edges made"):
        source = make_source(graph, session)
    with session.stage("store built"):
        store = Store.build(source, group=session.group, progress=False, plan=args.plan)
    del source
    session.note(f"{sum(graph.nodes.values()):,} rows in {len(graph.nodes)} tables")
    before = anonymous_mib()
    case: dict[str, Any] = {
        "graph": graph.name,
        "batch": args.batch,
        "fanout": "-".join(map(str, args.fanouts)),
    }
    with store:
        frames = batches_of(session, data_of(store, graph, True))
        batch = next(frames)
        nodes = {t: batch[t].n_id.cpu() for t in graph.nodes}
        case["nodes"] = sum(ids.numel() for ids in nodes.values())
        timing = measure(session, lambda *_: next(frames))
        held_mib = {"rank_mib": max(session.group.all_gather(anonymous_mib() - before))}
        if session.device.type == "cuda":
            held_mib["torch_mib"] = torch.cuda.max_memory_allocated(session.device) / 2**20
        add = session.recorder.add
        add(timing, system="peergraph", plan=args.plan, op="loader", **held_mib, **case)
        samples = batches_of(session, data_of(store, graph, False))
        sampling = measure(session, lambda *_: next(samples))
        add(sampling, system="samples alone", against=args.plan, op="loader", **case)
        if not args.no_training:
            _train(session, graph, frames, case)
    session.barrier()
    peer = _peer(session, nodes)
    workers = f"{_WORKERS} workers of torch_frame"
    shown = Timing(*(value / _WORKERS for value in (peer, peer, peer, peer)), None, 1)
    # One of our ranks beside all eight workers.
    add(shown, system=workers, against=args.plan, op="loader", **case)
    slowest = max(session.group.all_gather(timing.wall_ms or timing.ms))
    session.note(
        f"{session.world} ranks make {session.world / slowest * 1e3:.1f} batches a second, "
        f"{peer / _WORKERS / slowest * session.world:.1f} times {workers} on the same rows "
        f"({peer:.1f} ms a batch and worker)"
    )


def _train(session: Session, graph: TypedGraph, frames: Iterator[Any], case: Any) -> None:
    """Times steps with the loader and on batches in memory. Ranks do not average gradients."""
    model = accelerate(Model(graph, 128, len(session.args.fanouts)).to(session.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def whole(_: int, mark: Mark) -> None:
        batch = next(frames)
        mark("loader")
        step(batch)
        mark("train")

    plan, add = session.args.plan, session.recorder.add
    add(measure(session, whole), system="peergraph", plan=plan, op="training", **case)
    held = [next(frames) for _ in range(2)]
    in_memory = measure(session, lambda i, _: step(held[i % 2]))
    add(in_memory, system="batches in memory", against=plan, op="training", **case)


def _peer(session: Session, nodes: dict[str, Tensor]) -> float:
    """Returns the milliseconds of PyTorch Frame on one thread for the frames of a batch, by rank 0.
    Collective.
    """

    def work() -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        counts = {
            t: min(session.args.peer_rows, 1 + int(n.max())) for t, n in nodes.items() if n.numel()
        }
        plain = {t: plain_frame(tag, counts[t]) for tag, t in enumerate(nodes) if t in counts}
        ids = {t: nodes[t] % count for t, count in counts.items()}
        times = []
        for _ in range(2 + session.args.iterations):
            begin = time.perf_counter()
            for table, frame in plain.items():
                frame[ids[table]]
            times.append((time.perf_counter() - begin) * 1e3)
            session.recorder.beat()
        torch.set_num_threads(threads)
        return median(times[2:])

    return session.first_does(work)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--rows", type=int, default=1_000_000, help="of all ten tables")
    result.add_argument("--batch", type=int, default=512, help="seeds on each rank")
    result.add_argument("--fanouts", type=integers, default="128,64", help="by edge type")
    result.add_argument("--plan", default="auto", help="of the store")
    result.add_argument("--peer-rows", type=int, default=2_000_000, help="of a table, at most")
    result.add_argument("--no-training", action="store_true")
    return result


if __name__ == "__main__":
    sys.exit(main("frames", run, arguments(), peers=()))
