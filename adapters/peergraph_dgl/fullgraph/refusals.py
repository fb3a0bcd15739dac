"""DGL's functions of graphs that a partitioned graph serves itself, or refuses by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .. import compat
from .graph import PartitionedGraph
from .readout import broadcast_to_rows

_patches = compat.new_patches()


def install() -> None:
    """Replaces the functions wherever they were imported. Idempotent."""
    if _patches:
        return
    replacements: dict[str, Callable[..., Any]] = {
        "dgl:edge_subgraph": _edge_subgraph,
        "dgl:broadcast_nodes": _broadcast_nodes,
        "dgl:broadcast_edges": _broadcast_edges,
    }
    for full_name in compat.REFUSED:
        called = full_name.rpartition(":")[2].partition(".")[0]
        replacements[full_name] = functools.partial(_refuse, called)
    for full_name, replacement in replacements.items():
        owner, name = compat.find(full_name)
        if isinstance(owner, type):
            _patches.replace(owner, name, replacement)
            continue
        original = getattr(owner, name)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                _patches.replace(module, name, replacement)


def _edge_subgraph(original: Callable[..., Any], graph: Any, edges: Any, **options: Any) -> Any:
    if isinstance(graph, PartitionedGraph):
        return graph.edge_subgraph(edges, **options)
    return original(graph, edges, **options)


def _broadcast_nodes(
    original: Callable[..., Any], graph: Any, graph_feat: Any, *, ntype: Any = None
) -> Any:
    if not isinstance(graph, PartitionedGraph):
        return original(graph, graph_feat, ntype=ntype)
    return broadcast_to_rows(graph_feat, graph.nodes(ntype), graph.batch_num_nodes(ntype))


def _broadcast_edges(
    original: Callable[..., Any], graph: Any, graph_feat: Any, *, etype: Any = None
) -> Any:
    if not isinstance(graph, PartitionedGraph):
        return original(graph, graph_feat, etype=etype)
    rows = graph.edges("eid", etype=etype)
    return broadcast_to_rows(graph_feat, rows, graph.batch_num_edges(etype))


def _refuse(name: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(value, PartitionedGraph) for value in _values([*args, *kwargs.values()])):
        raise NotImplementedError(
            f"dgl's {name} of a partitioned graph, of which each rank holds a part: call it on the "
            "DGLGraph before peergraph_dgl.full_graph()"
        )
    return original(*args, **kwargs)


def _values(argument: Any) -> Iterator[Any]:
    """Yields the values, and those of lists among them."""
    for value in argument:
        if isinstance(value, (list, tuple)):
            yield from _values(value)
        else:
            yield value
