"""Temporal batches as pyg-lib makes them, by plain loops.

pyg-lib takes lists that PyG has sorted by time (a stable sort, for the graph and the attribute): of
what the seed admits it takes all or, of "last", the end, and numbers nodes as it finds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from tests.adapters.pyg.graphs import random_data

LEAST = torch.iinfo(torch.int64).min


def timed_data(attribute: str) -> Data:
    """Times that come in any order, and many of them twice."""
    data = random_data()
    random = torch.Generator().manual_seed(5)
    data.stamp = torch.randint(30, (60,), generator=random)
    data.edge_stamp = torch.randint(100, (400,), generator=random)
    data.times = data.edge_stamp if attribute == "edge_stamp" else data.stamp[data.edge_index[0]]
    return data


def check_last(
    batch: Any, data: Data, fanouts: list[int], latest: Tensor, earliest: Tensor | None = None
) -> None:
    """Checks nodes, edges and their order of a batch of "last", or with fanouts of -1.

    Args:
        batch: of a loader; each seed has a tree of its own.
        data: of :func:`timed_data`.
        fanouts: of the loader.
        latest, earliest: the window of each seed; None: no limit.
    """
    seeds = batch.input_id.tolist()
    first = [LEAST] * len(seeds) if earliest is None else earliest.tolist()
    expected = _last(data, seeds, first, latest.tolist(), fanouts)
    for name, values in expected.items():
        assert batch[name].tolist() == values, name


def _last(
    data: Data, seeds: list[int], first: list[int], last: list[int], fanouts: list[int]
) -> dict[str, Any]:
    edges = sorted(range(data.num_edges), key=lambda e: (int(data.times[e]), e))
    lists: dict[int, list[int]] = {}
    for e in edges:
        lists.setdefault(int(data.edge_index[1, e]), []).append(e)
    nodes = list(enumerate(seeds))
    rows = {node: row for row, node in enumerate(nodes)}
    row, col, e_id, begin = [], [], [], 0
    for fanout in fanouts:
        end = len(nodes)
        for target in range(begin, end):
            tree, node = nodes[target]
            window = range(first[tree], last[tree] + 1)
            admitted = [e for e in lists.get(node, []) if int(data.times[e]) in window]
            for e in admitted if fanout < 0 else admitted[max(0, len(admitted) - fanout) :]:
                source = tree, int(data.edge_index[0, e])
                if source not in rows:
                    rows[source] = len(nodes)
                    nodes.append(source)
                row.append(rows[source])
                col.append(target)
                e_id.append(e)
        begin = end
    return {
        "n_id": [node for _, node in nodes],
        "batch": [tree for tree, _ in nodes],
        "edge_index": [row, col],
        "e_id": e_id,
    }
