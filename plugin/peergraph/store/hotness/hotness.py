"""Finds how often nodes are read: from degrees, counts (GNNLab's pre-sampling), users' values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.group.collective_call import collective_call
from peergraph.store.hotness.good_turing import expected_reads
from peergraph.store.input.graph_edges import RelationEdges, out_degrees
from peergraph.store.input.schema import Schema
from peergraph.store.input.shared_vector import build_shared_vector
from peergraph.store.input.source import EdgeType, NodeType

BY_DEGREE = ("out_degree", "in_degree")


@dataclass(frozen=True)
class Hotness:
    """Counted reads by users' node ids. :func:`peergraph.sampling.presample` counts them.

    Args:
        features: by node type ``[num_nodes]``: the number of mini-batches that had the node among
            their inputs. It orders the nodes.
        structure: by edge type ``[num destinations]``: how often the node's in-neighbours were
            sampled.
        batches: number of mini-batches of all ranks.
        edges: by edge type: number of sampled edges.
    """

    features: Mapping[NodeType, Tensor]
    structure: Mapping[EdgeType, Tensor]
    batches: int
    edges: Mapping[EdgeType, int]


HotnessSpec = str | Tensor | Mapping[NodeType, Tensor] | Hotness


def node_hotness(
    hotness: HotnessSpec,
    edges: Mapping[EdgeType, RelationEdges],
    degrees: Mapping[EdgeType, Tensor],
    schema: Schema,
    group: Group,
    is_read: bool,
) -> dict[NodeType, Tensor]:
    """Returns the hotness of the nodes: [num_nodes] for each node type, on the CPU, the same on
    every rank. Collective.

    Args:
        hotness: "out_degree", "in_degree", or values by user id. Rank 0's values are used, but
            every rank must give the same kind.
        edges: the structure.
        degrees: in-degrees by user id.
        schema: the types and sizes of the graph.
        group: the ranks.
        is_read: whether to compute values; otherwise `hotness` is only checked.

    Raises:
        ValueError, TypeError: values do not fit the graph, or ranks give different kinds; on every
            rank.
    """
    _check_kinds(group, hotness if isinstance(hotness, str) else "values")
    if isinstance(hotness, str):
        if hotness not in BY_DEGREE:
            raise ValueError(f"hotness must be values or one of {BY_DEGREE}, got {hotness!r}")
        if not is_read:
            return {}
        if hotness == "out_degree":
            return out_degrees(edges, schema, group)
        by_type = {
            t: torch.zeros(schema.num_nodes[t], dtype=torch.int64, device="cpu")
            for t in schema.node_types
        }
        for edge_type, of_type in degrees.items():
            by_type[edge_type[2]] += of_type
        return by_type
    values = collective_call(group, lambda: _checked(hotness, schema))
    if not is_read:
        return {}
    return {t: _from_first_rank(group, values[t]) for t in schema.node_types}


def list_hotness(
    hotness: HotnessSpec | Mapping[EdgeType, Tensor],
    edges: Mapping[EdgeType, RelationEdges],
    degrees: Mapping[EdgeType, Tensor],
    schema: Schema,
    group: Group,
    is_read: bool,
) -> dict[EdgeType, Tensor]:
    """Returns how often neighbour lists are read: [destinations] for each edge type. Otherwise as
    :func:`node_hotness`.

    Args:
        hotness: as in :func:`node_hotness`, or values by edge type. Of counts the reads of lists
            are taken.
    """
    if isinstance(hotness, Hotness):
        counts: Mapping[EdgeType, Tensor] = hotness.structure
    elif isinstance(hotness, Mapping) and hotness.keys() == schema.num_edges.keys() and hotness:
        counts = hotness  # type: ignore[assignment]
    else:
        by_node = node_hotness(hotness, edges, degrees, schema, group, is_read)  # type: ignore[arg-type]
        return {t: by_node[t[2]] for t in schema.num_edges} if is_read else {}
    _check_kinds(group, "lists")

    def check() -> None:
        if counts.keys() != schema.num_edges.keys():
            raise ValueError(
                f"structure_hotness must count {list(schema.num_edges)}, got {list(counts)}"
            )
        for edge_type, values in counts.items():
            _check_values(edge_type, values, schema.num_nodes[edge_type[2]])

    collective_call(group, check)
    if not is_read:
        return {}
    heat = {t: _from_first_rank(group, values) for t, values in counts.items()}
    if isinstance(hotness, Hotness):
        heat = {t: expected_reads(values.long()) for t, values in heat.items()}
    return heat


def _check_kinds(group: Group, kind: str) -> None:
    """Collective."""
    kinds = group.all_gather(kind)
    if len(set(kinds)) > 1:
        raise ValueError(f"hotness must be the same on all ranks, got {kinds}")


def _from_first_rank(group: Group, values: Tensor) -> Tensor:
    """Returns rank 0's values: [n] float64 on the CPU. Collective."""

    def write(shared: Tensor) -> None:
        if group.rank == 0:
            shared.view(torch.float64).copy_(values)

    return build_shared_vector(group, values.numel(), write).view(torch.float64)


def _checked(
    hotness: Tensor | Mapping[NodeType, Tensor] | Hotness, schema: Schema
) -> dict[NodeType, Tensor]:
    by_type = hotness.features if isinstance(hotness, Hotness) else hotness
    if isinstance(by_type, Tensor):
        if len(schema.node_types) != 1:
            raise ValueError(
                f"hotness must be given by node type, the graph has {schema.node_types}"
            )
        by_type = dict.fromkeys(schema.node_types, by_type)
    if not isinstance(by_type, Mapping):
        raise TypeError(
            f"hotness must be a name, a tensor or tensors, got {type(hotness).__name__}"
        )
    if by_type.keys() != set(schema.node_types):
        raise ValueError(f"hotness must be given for {schema.node_types}, got {list(by_type)}")
    for node_type, values in by_type.items():
        _check_values(node_type, values, schema.num_nodes[node_type])
    if isinstance(hotness, Hotness):
        if hotness.structure.keys() != schema.num_edges.keys():
            raise ValueError(
                f"hotness must count {list(schema.num_edges)}, got {list(hotness.structure)}"
            )
        for edge_type, values in hotness.structure.items():
            _check_values(edge_type, values, schema.num_nodes[edge_type[2]])
    return dict(by_type)


def _check_values(node_type: NodeType | EdgeType, values: Tensor, count: int) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"hotness of {node_type!r} must be a tensor, got {type(values).__name__}")
    if values.dtype.is_complex or tuple(values.shape) != (count,):
        raise ValueError(
            f"hotness of {node_type!r} must be real and of shape ({count},), "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )
    if not bool((values >= 0).all()) or not bool(torch.isfinite(values).all()):
        raise ValueError(f"hotness of {node_type!r} must be finite and not negative")
