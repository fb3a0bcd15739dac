"""The graph of `peergraph plan --full-graph`: counted in a store, or estimated from its sizes."""

from __future__ import annotations

from os import PathLike

import torch

from peergraph.cli._plan_graph import check_sizes
from peergraph.fullgraph.layout.duplication import Duplication
from peergraph.fullgraph.layout.edge_share import EdgeShare
from peergraph.fullgraph.layout.volume import Volume
from peergraph.fullgraph.plan.choose_order import OrderChooser, check_order
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.spread import sample_rows
from peergraph.memory import Group
from peergraph.store import EDGE, NODE
from peergraph.store.disk.saved_store import SavedStore
from peergraph.store.input.local_csc import local_structure
from peergraph.store.input.schema import TableSpec, agree_on_schema

_ALONE = Group(0, 1, torch.device("cpu"), 300.0)


def saved_facts(
    folder: str | PathLike[str], ranks: int, order: str
) -> tuple[GraphFacts, list[Duplication]]:
    """Counts a store that :meth:`Store.save` wrote, with its nodes in an order for `ranks` ranks.

    Args:
        folder: the folder of the store.
        ranks: the number of ranks.
        order: the order of the nodes.

    Returns:
        The facts, and the rows that chunks need.

    Raises:
        FileNotFoundError, ValueError: as in :meth:`Store.load`.
        ImportError: the order needs a package that is not installed.
    """
    source = SavedStore.open(folder, True, _ALONE).source(_ALONE, None)
    schema = agree_on_schema(source, _ALONE)
    shares = {}
    for edge_type, csc in local_structure(source, schema, _ALONE).items():
        destinations = torch.arange(csc.indptr.numel() - 1, device="cpu")
        ids = torch.arange(csc.indices.numel(), device="cpu")
        into = destinations.repeat_interleave(csc.indptr.diff())
        shares[edge_type] = EdgeShare(csc.indices, into, csc.edge_ids if csc.edge_ids is not None
                                      else ids)  # fmt: skip
    chooser = OrderChooser(_ALONE, schema.num_nodes, shares, 0, blocks=ranks)
    chosen = chooser.choose(check_order(order, schema.num_nodes))
    counted = sample_rows(_ALONE, chosen.parts, chooser.degrees, shares)
    facts = GraphFacts(
        {t: counts for t, (_, counts) in chosen.parts.items()},
        chosen.volumes,
        {t: sum(map(_row_bytes, tables.values())) for t, tables in schema.node_tables.items()},
        {t: sum(map(_row_bytes, tables.values())) for t, tables in schema.edge_tables.items()},
        chosen.name,
        chosen.reason,
    )
    return facts, counted


def described_facts(
    num_nodes: int, num_edges: int, row_bytes: int, skew: float, ranks: int
) -> GraphFacts:
    """Estimates the facts of a graph of these sizes with its nodes in random order.

    Args:
        num_nodes: the number of nodes.
        num_edges: the number of edges.
        row_bytes: the bytes of a node in all tables together.
        skew: the i-th largest out-degree is proportional to ``i ** -skew``; 0: all are equal.
        ranks: the number of ranks.

    Raises:
        ValueError: a size is not positive, or the skew is negative.
    """
    check_sizes({"nodes": num_nodes, "edges": num_edges, "row-bytes": row_bytes, "skew": skew})
    degrees = torch.arange(1, num_nodes + 1, dtype=torch.float64, device="cpu").pow_(-skew)
    degrees *= num_edges / float(degrees.sum())
    # The probability that a rank has none of the destinations of a node.
    expected = float(-torch.expm1(-degrees / ranks).sum())
    nodes, edges = num_nodes // ranks, num_edges // ranks // ranks
    rows = min(nodes, round(expected / ranks))
    volume = Volume(((rows,) * ranks,) * ranks, ((edges,) * ranks,) * ranks)
    reason = "expected of a graph of this size, not counted"
    return GraphFacts({NODE: (nodes,) * ranks}, {EDGE: volume}, {NODE: row_bytes}, {}, "random",
                      reason)  # fmt: skip


def _row_bytes(table: TableSpec) -> int:
    return int(torch.Size(table.shape[1:]).numel()) * table.dtype.itemsize
