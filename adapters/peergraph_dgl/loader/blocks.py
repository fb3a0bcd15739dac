"""Converts samples to DGL's message flow graphs (blocks)."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import Any

import dgl
from dgl import heterograph_index
from dgl.frame import Frame
from dgl.graph_index import from_coo
from dgl.heterograph import DGLBlock
from torch import Tensor

from peergraph.sampling import Sample

from ..backend.device_index import DeviceIndex
from ..backend.edge_list import EdgeList
from ..backend.message_passing import is_unsupported_by_dgl
from ..graph.frames import select_rows

TypePairs = tuple[tuple[int, int], ...]
"""Source and destination type of each relation."""


def to_blocks(sample: Sample, graph: Any) -> list[DGLBlock]:
    """Converts the hops of a sample to blocks, in the order of DGL's samplers: seeds last.

    Blocks share the memory and the device of the sample. Their data are rows of the data of
    `graph`, read on first use, with ``dgl.NID`` and ``dgl.EID``. Does not synchronise with a GPU.

    Args:
        sample: a sample with ``frontier="all"`` and edge ids, not disjoint, with rows in the id
            type of `graph`.
        graph: the ``DGLGraph`` or ``StoreGraph`` that was sampled.
    """
    nodes = {t: ids.to(graph.idtype) for t, ids in sample.nodes.items()}
    rows = {t: list(accumulate(sample.num_sampled_nodes[t])) for t in graph.ntypes}
    hops = range(sample.num_hops)
    frames = graph._node_frames, graph._edge_frames
    return [_block(sample, graph, nodes, rows, hop, *frames) for hop in reversed(hops)]


def _block(
    sample: Sample,
    graph: Any,
    nodes: dict[str, Tensor],
    rows: dict[str, list[int]],
    hop: int,
    graph_node_frames: list[Frame],
    graph_edge_frames: list[Frame],
) -> DGLBlock:
    num_src = {t: rows[t][hop + 1] for t in graph.ntypes}
    num_dst = {t: rows[t][hop] for t in graph.ntypes}
    edge_lists, edge_frames = [], []
    for i, edge_type in enumerate(graph.canonical_etypes):
        part = sample.block(hop, edge_type)
        source, _, destination = edge_type
        assert part.edge_ids is not None
        edge_lists.append(
            EdgeList(num_src[source], num_dst[destination], part.row, indptr=part.indptr)
        )
        edge_frames.append(
            select_rows(graph_edge_frames[i], part.edge_ids.to(graph.idtype), dgl.EID)
        )
    node_frames = [
        select_rows(graph_node_frames[i], nodes[t][: count[t]], dgl.NID)
        for count in (num_src, num_dst)
        for i, t in enumerate(graph.ntypes)
    ]
    counts = [count[t] for count in (num_src, num_dst) for t in graph.ntypes]
    index = make_index(graph, edge_lists, counts, is_block=True)
    types = (list(graph.ntypes), list(graph.ntypes))
    etypes = [edge_type[1] for edge_type in graph.canonical_etypes]
    return DGLBlock(index, types, etypes, node_frames, edge_frames)


def make_index(
    graph: Any, edge_lists: list[EdgeList], counts: list[int], *, is_block: bool = False
) -> Any:
    """Returns DGL's own index, without a copy, or a DeviceIndex on devices that DGL does not
    support.

    Args:
        graph: a graph of the same types.
        edge_lists: of each relation.
        counts: of each node type; of a block, those of the sources, then of the destinations.
    """
    types = {ntype: i for i, ntype in enumerate(graph.ntypes)}
    first = len(types) if is_block else 0  # of the types of destinations
    ends = tuple(
        (types[source], first + types[destination])
        for source, _, destination in graph.canonical_etypes
    )
    metagraph = _metagraph(len(counts), ends)
    if is_unsupported_by_dgl(edge_lists[0].device):
        return DeviceIndex(metagraph, counts, edge_lists)
    return heterograph_index.create_heterograph_from_relations(
        metagraph,
        [
            edges.to_dgl_index(1 if source == destination else 2)
            for edges, (source, destination) in zip(edge_lists, ends, strict=True)
        ],
        dgl.utils.toindex(counts, "int64"),
    )


@lru_cache(maxsize=16)
def _metagraph(num_ntypes: int, ends: TypePairs) -> Any:
    return from_coo(num_ntypes, [s for s, _ in ends], [d for _, d in ends], True)
