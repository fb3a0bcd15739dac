"""How often nodes are read: by degree, by counting (GNNLab's pre-sampling), or as users say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from peergraph.memory import Group
from peergraph.memory.together import run_everywhere
from peergraph.store.local_csc import LocalCsc, out_degrees
from peergraph.store.schema import Schema
from peergraph.store.shared_vector import assemble
from peergraph.store.source import EdgeType, NodeType

BY_DEGREE = ("out_degree", "in_degree")


@dataclass(frozen=True)
class Hotness:
    """Counted reads, by users' node ids; :func:`peergraph.sampling.presample` counts.

    Args:
        features: by node type ``[num_nodes]``: how many mini-batches had the node among their
            inputs. Nodes are ordered by it.
        structure: by edge type ``[num destinations]``: how often the node's in-neighbours were
            sampled.
        batches: mini-batches counted, over all ranks.
        edges: by edge type, edges sampled.
        hops: of a mini-batch.
    """

    features: Mapping[NodeType, Tensor]
    structure: Mapping[EdgeType, Tensor]
    batches: int
    edges: Mapping[EdgeType, int]
    hops: int = 3


Given = str | Tensor | Mapping[NodeType, Tensor] | Hotness


def node_hotness(
    given: Given,
    local: Mapping[EdgeType, LocalCsc],
    degrees: Mapping[EdgeType, Tensor],
    schema: Schema,
    group: Group,
    needed: bool,
) -> dict[NodeType, Tensor]:
    """[num_nodes] per node type, on the CPU, the same on every rank. Collective.

    Args:
        given: "out_degree", "in_degree", or values by user id; rank 0's count, but every rank must
            give the same kind.
        degrees: in-degrees by user id.
        needed: else `given` is only checked.

    Raises:
        ValueError, TypeError: values that do not fit the graph, kinds that differ; on every rank.
    """
    kinds = group.all_gather(given if isinstance(given, str) else "values")
    if len(set(kinds)) > 1:
        raise ValueError(f"hotness must be the same on all ranks, got {kinds}")
    if isinstance(given, str):
        if given not in BY_DEGREE:
            raise ValueError(f"hotness must be values or one of {BY_DEGREE}, got {given!r}")
        if not needed:
            return {}
        if given == "out_degree":
            return out_degrees(local, schema, group)
        found = {t: torch.zeros(n, dtype=torch.int64) for t, n in schema.num_nodes.items()}
        for edge_type, of_type in degrees.items():
            found[edge_type[2]] += of_type
        return found
    values = run_everywhere(group, lambda: _checked(given, schema))
    if not needed:
        return {}

    def write(shared: Tensor, node_type: NodeType) -> None:
        if group.rank == 0:
            shared.view(torch.float64).copy_(values[node_type])

    return {
        t: assemble(group, n, lambda shared, t=t: write(shared, t)).view(torch.float64)  # type: ignore[misc]
        for t, n in schema.num_nodes.items()
    }


def _checked(
    given: Tensor | Mapping[NodeType, Tensor] | Hotness, schema: Schema
) -> dict[NodeType, Tensor]:
    by_type = given.features if isinstance(given, Hotness) else given
    if isinstance(by_type, Tensor):
        if len(schema.num_nodes) != 1:
            raise ValueError(
                f"hotness must be given by node type, the graph has {list(schema.num_nodes)}"
            )
        by_type = dict.fromkeys(schema.num_nodes, by_type)
    if not isinstance(by_type, Mapping):
        raise TypeError(f"hotness must be a name, a tensor or tensors, got {type(given).__name__}")
    if by_type.keys() != schema.num_nodes.keys():
        raise ValueError(f"hotness must be given for {list(schema.num_nodes)}, got {list(by_type)}")
    for node_type, values in by_type.items():
        _check_values(node_type, values, schema.num_nodes[node_type])
    if isinstance(given, Hotness):
        if given.structure.keys() != schema.num_edges.keys():
            raise ValueError(
                f"hotness must count {list(schema.num_edges)}, got {list(given.structure)}"
            )
        for edge_type, values in given.structure.items():
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
