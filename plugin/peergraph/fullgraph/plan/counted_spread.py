"""The rows that chunks of a graph need, counted in an order of its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.duplication import Duplication, count_duplication, cut_chunks
from peergraph.fullgraph.layout.edge_share import EdgeShare
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.offload_spread import Spread, expected_spread

# Parts of the whole graph (HongTu, Table 3).
COUNTED_PARTS = (32, 128, 512)


def count_parts(
    edges: Iterable[EdgeShare], order: Tensor, counts: Sequence[int]
) -> list[Duplication]:
    """Counts the rows that 32, 128 and 512 chunks of all ranks need. Synchronises.

    Takes about 50 bytes for each edge.

    Args:
        edges: all edges between nodes of one type, in the user's ids, on one device.
        order: [nodes] the node at each internal row.
        counts: nodes of each rank.
    """
    shares = list(edges)
    if not shares:
        return []
    device = shares[0].source.device
    rows = torch.empty_like(order)
    rows[order] = torch.arange(order.numel(), device=order.device)
    rows = rows.to(device)
    source = torch.cat([rows[share.source.long()] for share in shares])
    destination = torch.cat([rows[share.destination.long()] for share in shares])
    csc = Csc.from_coo(source, destination, order.numel(), order.numel())
    ranks, degrees = len(counts), csc.in_degrees()
    return [
        count_duplication(csc.indptr, csc.indices, cut_chunks(degrees, counts, parts // ranks))
        for parts in COUNTED_PARTS
        if parts >= ranks
    ]


def spread_of(counted: Duplication, degree: float, facts: GraphFacts) -> Spread:
    """Returns counted rows as plans take them.

    Args:
        degree: edges for each node.
        facts: of the graph.
    """
    nodes, ranks = max(1, counted.num_nodes), counted.world_size
    # Of the rows that a rank receives, as many stay from the chunk before as of all rows.
    sent = counted.alpha * (ranks - 1) / ranks * counted.loaded / max(1, counted.distinct)
    network = _share_of_network(facts, counted.num_chunks) * sent
    loaded = counted.loaded / nodes
    return Spread(counted.num_chunks, counted.alpha, loaded, True, sent, degree, network)


def _share_of_network(facts: GraphFacts, chunks: int) -> float:
    """The share of the rows that ranks receive which cross the network, as of a random order."""
    expected = expected_spread(facts, chunks)
    return expected.network / max(expected.sent, 1e-9)


def format_duplication(counted: Sequence[Duplication]) -> list[str]:
    """Returns a line of text for each number of chunks."""
    return [
        f"  {rows.world_size} x {rows.num_chunks} chunks need {rows.alpha:.2f} rows for each "
        f"node (counted); {rows.saved_between_ranks:.2f} are passed on by ranks, "
        f"{rows.saved_between_batches:.2f} stay from the batch before"
        for rows in counted
    ]
