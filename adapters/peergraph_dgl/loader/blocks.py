"""Samples as DGL's message flow graphs."""

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
from ..backend.edge_list import Relation
from ..backend.message_passing import is_foreign

Ends = tuple[tuple[int, int], ...]


def blocks_of(sample: Sample, graph: Any) -> list[DGLBlock]:
    """The hops of a sample as DGL's samplers return them: that of the seeds is the last.

    Blocks share the sample's memory and lie on its device; their data are those of `graph`, read
    when asked for, with ``dgl.NID`` and ``dgl.EID``. Does not synchronise on a GPU.

    Args:
        sample: with ``frontier="all"`` and edge ids, not disjoint; rows in the id type of `graph`.
        graph: whose types and data they have: a ``DGLGraph`` or ``StoreGraph``.
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
    of_nodes: list[Frame],
    of_edges: list[Frame],
) -> DGLBlock:
    num_src = {t: rows[t][hop + 1] for t in graph.ntypes}
    num_dst = {t: rows[t][hop] for t in graph.ntypes}
    relations, edge_frames = [], []
    for i, edge_type in enumerate(graph.canonical_etypes):
        part = sample.block(hop, edge_type)
        source, _, destination = edge_type
        assert part.edge_ids is not None
        relations.append(
            Relation(num_src[source], num_dst[destination], part.row, indptr=part.indptr)
        )
        edge_frames.append(rows_of(of_edges[i], part.edge_ids.to(graph.idtype), dgl.EID))
    node_frames = [
        rows_of(of_nodes[i], nodes[t][: count[t]], dgl.NID)
        for count in (num_src, num_dst)
        for i, t in enumerate(graph.ntypes)
    ]
    counts = [count[t] for count in (num_src, num_dst) for t in graph.ntypes]
    index = _index(graph, relations, counts)
    types = (list(graph.ntypes), list(graph.ntypes))
    etypes = [edge_type[1] for edge_type in graph.canonical_etypes]
    return DGLBlock(index, types, etypes, node_frames, edge_frames)


def _index(graph: Any, relations: list[Relation], counts: list[int]) -> Any:
    """DGL's own index where its C library can have one, without a copy; else ours."""
    types = {ntype: i for i, ntype in enumerate(graph.ntypes)}
    ends = tuple(
        (types[source], len(types) + types[destination])
        for source, _, destination in graph.canonical_etypes
    )
    metagraph = _metagraph(2 * len(types), ends)
    if is_foreign(relations[0].device):
        return DeviceIndex(metagraph, counts, relations)
    return heterograph_index.create_heterograph_from_relations(
        metagraph,
        [relation.library_index() for relation in relations],
        dgl.utils.toindex(counts, "int64"),
    )


@lru_cache(maxsize=16)
def _metagraph(num_ntypes: int, ends: Ends) -> Any:
    return from_coo(num_ntypes, [s for s, _ in ends], [d for _, d in ends], True)


def rows_of(whole: Frame, ids: Tensor, name: str | None) -> Frame:
    """Rows `ids` of a frame of the graph, read when asked for; `name` is the column of the ids."""
    frame = whole.subframe(ids)
    for column in frame._columns.values():
        # Where the values are, which is not where the block is, is the graph's business.
        if column.device is None and column.storage.device != ids.device:
            column.device = (ids.device, {})
    if name is not None:
        frame[name] = ids
    return frame
