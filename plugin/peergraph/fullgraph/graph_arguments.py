"""What ranks give to a full graph: checked on each of them, and compared between them."""

from __future__ import annotations

from collections.abc import Mapping, ValuesView
from typing import Any

from peergraph.fullgraph.full_graph_options import FullGraphOptions
from peergraph.fullgraph.layout.edge_share import (
    EdgeReader,
    EdgesInput,
    Share,
    edge_reader,
    first_bad_edge,
)
from peergraph.fullgraph.plan.choose_order import order_digest
from peergraph.fullgraph.structure.edge_index import PartitionedEdgeIndex
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.content import describe_content
from peergraph.memory.region.free_memory import check_count
from peergraph.store import EDGE, NODE, EdgeType, NodeType


def check_graph(
    num_nodes: int | Mapping[NodeType, int], edges: EdgesInput | Mapping[EdgeType, EdgesInput]
) -> tuple[dict[NodeType, int], dict[EdgeType, EdgeReader]]:
    """Returns the number of nodes by type and the readers of edges by relation."""
    counts = _check_num_nodes(num_nodes)
    relations = edges if isinstance(edges, Mapping) else {EDGE: edges}
    if not isinstance(edges, Mapping) and list(counts) != [NODE]:
        raise ValueError(f"edges must be a dict by relation for the types {list(counts)}")
    readers: dict[EdgeType, EdgeReader] = {}
    for edge_type, of_type in relations.items():
        _check_edge_type(edge_type, counts)
        readers[edge_type] = edge_reader(of_type, counts[edge_type[2]])
    return counts, readers


def refuse_partitioned(values: Mapping[str, Any]) -> None:
    """Raises TypeError for what :meth:`FullGraph.node_rows` and others returned, also in lists.

    Args:
        values: what a rank gives, by the name that errors show.
    """
    for name, value in values.items():
        items = value.values() if isinstance(value, Mapping) else value
        for item in items if isinstance(items, (list, tuple, ValuesView)) else [value]:
            if isinstance(item, (PartitionedTensor, PartitionedEdgeIndex)):
                raise TypeError(
                    f"{name} is partitioned over the ranks, as full_graph returns it: pass the "
                    "data that full_graph was given, or value.full_tensor(), called on all ranks"
                )


def agree_on_graph(
    group: Group,
    num_nodes: dict[NodeType, int],
    readers: dict[EdgeType, EdgeReader],
    orders: Mapping[NodeType, Any],
    memory_budget: int | None,
    contents: Mapping[str, Any],
    options: FullGraphOptions,
) -> None:
    """Raises ValueError on all ranks if they have other graphs or arguments. Collective."""
    if group.world_size == 1:
        return  # a digest reads all edges and rows

    def describe() -> dict[str, str]:
        edges = {f"edges of {t}": reader.digest(group.device) for t, reader in readers.items()}
        return edges | {name: describe_content(x, group.device) for name, x in contents.items()}

    digests = collective_call(group, describe)
    topology, model = options["topology"], options["model"]
    # Folders and progress may differ.
    same = "offload", "num_chunks", "host_memory", "mode", "seed"
    group.agree(
        num_nodes=num_nodes,
        **digests,
        order={t: order_digest(order) for t, order in orders.items()},
        memory_budget=memory_budget,
        topology=None if topology is None else topology.name,
        model=None if model is None else repr(model),
        hidden_dtype=str(options["hidden_dtype"]),
        **{name: options[name] for name in same},  # type: ignore[literal-required]
    )


def check_ends(
    group: Group, num_nodes: Mapping[NodeType, int], shares: Mapping[EdgeType, Share]
) -> None:
    """Raises IndexError on all ranks for the first edge of a relation that is out of range."""
    mine = {t: first_bad_edge(s, num_nodes[t[0]], num_nodes[t[2]]) for t, s in shares.items()}
    everyone = group.all_gather(mine)
    for edge_type in shares:
        bad_edges = [bad[edge_type] for bad in everyone if bad[edge_type] is not None]
        if bad_edges:
            edge, end, node = min(bad_edges)
            name = "edges" if edge_type == EDGE else f"edges of {edge_type}"
            node_type = edge_type[0 if end == "source" else 2]
            raise IndexError(
                f"{name}: the {end} of edge {edge} is {node}, out of range for "
                f"{num_nodes[node_type]} nodes"
                + ("" if node_type == NODE else f" of type {node_type!r}")
            )


def _check_num_nodes(num_nodes: int | Mapping[NodeType, int]) -> dict[NodeType, int]:
    counts = dict(num_nodes) if isinstance(num_nodes, Mapping) else {NODE: num_nodes}
    if not counts:
        raise ValueError("num_nodes must name at least one node type, got none")
    for node_type, count in counts.items():
        check_count(f"num_nodes of {node_type!r}", count)
    return counts


def _check_edge_type(edge_type: EdgeType, counts: Mapping[NodeType, int]) -> None:
    if not isinstance(edge_type, tuple) or len(edge_type) != 3:
        raise ValueError(
            "edges must be by relation (source type, name, destination type), got the key "
            f"{edge_type!r}"
        )
    for node_type in (edge_type[0], edge_type[2]):
        if node_type not in counts:
            raise ValueError(
                f"edges of {edge_type} name the node type {node_type!r}, expected one of "
                f"{list(counts)}"
            )
