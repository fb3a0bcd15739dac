"""Makes the rows, times and keys of a random database of ten tables, piece by piece, anywhere.

Nine of ten rows are events, as in RelBench's databases: an item has 70 lines and 60 visits in the
mean, a user 7 orders and 10 visits. Events are recorded in the order of their times, so each list
of events is sorted by time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from inputs.counter_hash import hash_range, stream_key
from rgat_shape.edges import make_csc
from rgat_shape.graph import Relation, TypedGraph
from torch import Tensor
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor

from peergraph.store import (
    VALUES,
    EdgeSource,
    FrameField,
    FrameSpec,
    GraphSource,
    RowSource,
    list_type,
)

_SEED = 20261130
_SHARES = {
    **{"user": 0.03, "item": 0.005, "shop": 0.0005, "address": 0.0245, "order": 0.2},
    **{"line": 0.35, "visit": 0.3, "review": 0.05, "payment": 0.035, "coupon": 0.005},
}
_KEYS = (
    *(("order", "user"), ("order", "address"), ("line", "order"), ("line", "item")),
    *(("visit", "user"), ("visit", "item"), ("review", "user"), ("review", "item")),
    *(("payment", "order"), ("coupon", "shop"), ("item", "shop")),
)
EVENTS = frozenset({"order", "line", "visit", "review", "payment", "coupon"})
"""The tables with times."""
SPAN = 2 * 365 * 24 * 60 * 60
"""Times are in 0 .. SPAN - 1."""
NUMBERS, CATEGORIES, WIDTH, VALUES_OF_CATEGORY, TOKENS = 4, 3, 16, 100, 10_000
_LENGTHS = (0, 3, 5, 8, 8, 10, 13, 17)
"""Of the lists of tokens of eight rows."""
_TOKENS_FIELD = FrameField("text_tokenized", "input_ids", "lists")
_SPEC = FrameSpec(
    {
        "numerical": tuple(f"n{i}" for i in range(NUMBERS)),
        "categorical": tuple(f"c{i}" for i in range(CATEGORIES)),
        "timestamp": ("t",),
        "embedding": ("e",),
        "text_tokenized": ("w",),
    },
    (
        FrameField("numerical", None, "dense"),
        FrameField("categorical", None, "dense"),
        FrameField("timestamp", None, "dense"),
        FrameField("embedding", None, "joined", (0, WIDTH)),
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


def _bounds(rows: Tensor) -> Tensor:
    """Returns where the tokens of rows begin."""
    first = torch.tensor([0, *accumulate(_LENGTHS)], device=rows.device)
    return rows // len(_LENGTHS) * sum(_LENGTHS) + first[rows % len(_LENGTHS)]


def _num_tokens(rows: int) -> int:
    return int(_bounds(torch.tensor(rows, device="cpu")))


def _fields(tag: int, device: torch.device) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Returns the shape of a row, the dtype, and a function of the rows of each field."""

    def hashed(number: int, width: int, begin: int, end: int) -> Tensor:
        key = stream_key(_SEED, 8 * tag + number)
        return hash_range(key, begin * width, end * width, device).view(end - begin, width)

    def floats(number: int, width: int) -> Callable[[int, int], Tensor]:
        return lambda begin, end: (hashed(number, width, begin, end) >> 40).float() * 2.0**-22

    def numbers(number: int, width: int, most: int) -> Callable[[int, int], Tensor]:
        return lambda begin, end: hashed(number, width, begin, end) % most

    return {
        "numerical": ((NUMBERS,), torch.float32, floats(0, NUMBERS)),
        "categorical": ((CATEGORIES,), torch.int64, numbers(1, CATEGORIES, VALUES_OF_CATEGORY)),
        "timestamp": ((1, 7), torch.int64, lambda *at: numbers(2, 7, 60)(*at).unsqueeze(1)),
        "embedding": ((WIDTH,), torch.float32, floats(3, WIDTH)),
        "text_tokenized.input_ids": (
            (2,),
            torch.int64,
            lambda begin, end: _bounds(torch.arange(begin, end + 1, device=device)).unfold(0, 2, 1),
        ),
        VALUES: ((), torch.int64, lambda *at: numbers(4, 1, TOKENS)(*at).view(-1)),
    }


def make_source(
    graph: TypedGraph, rank: int, world: int, device: torch.device, storage: str | None
) -> GraphSource:
    """Returns a rank's part of the database.

    Args:
        graph: the tables and keys.
        storage: of the columns of floating point, see `peergraph.store.RowSource`.
    """
    nodes = dict(graph.nodes)
    lists = {t: list_type(t, _TOKENS_FIELD.table("tf")) for t in graph.nodes}
    nodes.update({lists[t]: _num_tokens(n) for t, n in graph.nodes.items()})
    ranges = {t: (n * rank // world, n * (rank + 1) // world) for t, n in nodes.items()}
    edges = {
        stored.type: EdgeSource(csc=make_csc(graph, stored, ranges[stored.type[2]], device))
        for stored in graph.stored
    }
    tables: dict[str, dict[str, Any]] = {t: {} for t in nodes}
    for tag, (table, rows) in enumerate(graph.nodes.items()):
        for name, (shape, dtype, rows_of) in _fields(tag, device).items():
            kind = lists[table] if name == VALUES else table
            count = ranges[kind][1] - ranges[kind][0]
            narrow = storage if dtype.is_floating_point else None
            source = RowSource((count, *shape), dtype, rows_of, narrow)
            tables[kind][name if name == VALUES else f"tf.{name}"] = source
        if table in EVENTS:
            begin, end = ranges[table]
            times = _times_of(rows, device)
            tables[table]["time"] = RowSource((end - begin,), torch.int64, times)
    frames = {t: {"tf": _SPEC} for t in graph.nodes}
    return GraphSource(nodes, edges, tables, node_range=ranges, frames=frames)


def _times_of(rows: int, device: torch.device) -> Callable[[int, int], Tensor]:
    return lambda begin, end: torch.arange(begin, end, device=device) * SPAN // rows


def plain_frame(tag: int, rows: int, device: torch.device) -> TensorFrame:
    """Returns the first rows of a table as PyTorch Frame has them, on the CPU.

    Args:
        tag: the number of the table.
        device: where the rows are made.
    """
    parts = {name: rows_of for name, (_, _, rows_of) in _fields(tag, device).items()}
    values = {name: parts[name](0, rows).cpu() for name in ("numerical", "categorical")}
    values["timestamp"] = parts["timestamp"](0, rows).cpu()
    offset = _bounds(torch.arange(rows + 1, device=device)).cpu()
    tokens = MultiNestedTensor(rows, 1, parts[VALUES](0, int(offset[-1])).cpu(), offset)
    embedding = MultiEmbeddingTensor.from_tensor_list([parts["embedding"](0, rows).cpu()])
    columns = {stype(name): list(names) for name, names in _SPEC.columns.items()}
    features: dict[Any, Any] = {stype(name): value for name, value in values.items()}
    features[stype.embedding] = embedding
    features[stype.text_tokenized] = {"input_ids": tokens}
    return TensorFrame(features, columns)
