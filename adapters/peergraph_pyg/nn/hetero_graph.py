"""Models that PyG's ``to_hetero`` has made: the layers of one step run as one operation.

``to_hetero`` writes a model as a graph of torch.fx, with a call of a layer for each relation, and
the sums of their results. Here the calls of one step become a call of the module that holds the
layers, which gives the sums. Parameters, and their names, stay.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch_geometric.nn.conv import MessagePassing

from .. import compat
from ..data.tailed_rows import whole_rows
from .joined_layers import Call, EdgeType
from .relation_sums import joined_totals, run_alone

# Of each layer: its name, and the positions of its sources' and destinations' features.
Relations = tuple[tuple[str, int, int], ...]
# Of each result: the positions of the layers whose results are added, and the divisor of the sum.
Results = tuple[tuple[tuple[int, ...], float], ...]


class RelationLayers(torch.nn.ModuleDict):
    """The layers of one step of a model, by the names that PyG gives relations."""

    def forward(
        self,
        relations: Relations,
        results: Results,
        features: tuple[Any, ...],
        edges: tuple[Any, ...],
    ) -> tuple[Tensor, ...]:
        """Returns sums of the layers' results.

        Args:
            relations: the layers, in the order of `edges`.
            results: which of their results are added.
            features: of nodes.
            edges: the edge index of each layer.
        """
        result_of = {layer: f"sum{i}" for i, (layers, _) in enumerate(results) for layer in layers}
        whole = [whole_rows(rows) for rows in features]
        keys: list[EdgeType] = []
        x: dict[str, Any] = {}
        for i, (name, source, target) in enumerate(relations):
            total = result_of[i]
            keys.append((total if source == target else f"x{source}", name, total))
            x[keys[-1][0]], x[total] = whole[source], whole[target]
        call = Call(x, dict(zip(keys, edges, strict=True)), {})
        layers = {key: self[key[1]] for key in keys}
        scales = {f"sum{i}": 1 / divisor for i, (_, divisor) in enumerate(results)}
        if not torch.compiler.is_compiling() and not compat.is_traced():
            totals = joined_totals(layers, call, scales)
            if totals is not None:
                return tuple(totals[each] for each in scales)
        of_types = []
        for positions, divisor in results:
            rows = [run_alone(keys[i], layers[keys[i]], call) for i in positions]
            total_of_rows = rows[0]
            for each in rows[1:]:
                total_of_rows = total_of_rows + each
            of_types.append(total_of_rows if divisor == 1 else total_of_rows / divisor)
        return tuple(of_types)


def join_relations(model: GraphModule) -> None:
    """Makes the layers of each step one call, in place, where the graph allows it."""
    changed = False
    for name, child in list(model.named_children()):
        if type(child) is torch.nn.ModuleDict and _join(model, name):
            child.__class__ = RelationLayers
            changed = True
    if changed:
        model.recompile()


def part_relations(model: GraphModule) -> None:
    """Undoes :func:`join_relations`."""
    graph, changed = model.graph, False
    for node in list(graph.nodes):
        child = model.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(child, RelationLayers):
            _part(graph, node)
            child.__class__ = torch.nn.ModuleDict  # type: ignore[assignment]
            changed = True
    if changed:
        model.recompile()


class _Result(NamedTuple):
    """A sum of layers' results: its node, the nodes before it, the layers and the divisor."""

    node: Node
    steps: list[Node]
    layers: list[int]
    divisor: float = 1.0


def _join(model: GraphModule, name: str) -> bool:
    graph = model.graph
    calls = [
        node
        for node in graph.nodes
        if node.op == "call_module" and node.target.rpartition(".")[0] == name
    ]
    if len(calls) < 2 or len({node.target for node in calls}) < len(calls):
        return False
    if not all(_is_relation(model, node) for node in calls):
        return False
    ends = [_ends(node) for node in calls]
    results = _results(graph, calls, [target for _, target in ends])
    order = {node: i for i, node in enumerate(graph.nodes)}
    last = max(calls, key=lambda node: order[node])
    if any(order[user] < order[last] for each in results for user in each.node.users):
        return False
    features = list(dict.fromkeys(end for pair in ends for end in pair))
    relations = tuple(
        (node.target.rpartition(".")[2], features.index(source), features.index(target))
        for node, (source, target) in zip(calls, ends, strict=True)
    )
    with graph.inserting_after(last):
        joined = graph.call_module(
            name,
            (
                relations,
                tuple((tuple(each.layers), each.divisor) for each in results),
                tuple(features),
                tuple(node.args[1] for node in calls),
            ),
        )
    place: Any = joined
    for i, each in enumerate(results):
        with graph.inserting_after(place):
            place = graph.call_function(operator.getitem, (joined, i))
        each.node.replace_all_uses_with(place)
    unused = {each for result in results for each in result.steps}
    for step in sorted(unused, key=lambda step: -order[step]):
        graph.erase_node(step)
    return True


def _is_relation(model: GraphModule, node: Node) -> bool:
    """Returns whether a call is that of a layer with features and edges alone."""
    if not isinstance(model.get_submodule(str(node.target)), MessagePassing):
        return False
    if node.kwargs or len(node.args) != 2 or not isinstance(node.args[1], Node):
        return False
    x = node.args[0]
    ends = x if isinstance(x, (tuple, list)) else (x, x)
    return len(ends) == 2 and all(isinstance(end, Node) for end in ends)


def _ends(node: Node) -> tuple[Node, Node]:
    x: Any = node.args[0]
    return (x, x) if isinstance(x, Node) else (x[0], x[1])


def _results(graph: Any, calls: list[Node], targets: list[Node]) -> list[_Result]:
    """Returns the sums of results for one type of destinations that nothing else reads in part."""
    parts = {node: _Result(node, [node], [i]) for i, node in enumerate(calls)}
    for node in graph.nodes:
        terms: list[Any] = list(node.args)
        if node.op != "call_function" or node.kwargs or len(terms) != 2:
            continue
        one = parts.get(terms[0]) if isinstance(terms[0], Node) else None
        if one is None or len(terms[0].users) > 1 or one.divisor != 1:
            continue
        other = parts.get(terms[1]) if isinstance(terms[1], Node) else None
        if node.target is torch.add and other is not None and other is not one:
            alone = len(terms[1].users) == 1 and other.divisor == 1
            if alone and targets[one.layers[0]] is targets[other.layers[0]]:
                del parts[terms[0]], parts[terms[1]]
                steps = [*one.steps, *other.steps, node]
                parts[node] = _Result(node, steps, one.layers + other.layers)
        elif node.target is torch.div and isinstance(terms[1], int) and len(one.layers) > 1:
            del parts[terms[0]]
            parts[node] = _Result(node, [*one.steps, node], one.layers, float(terms[1]))
    return list(parts.values())


def _part(graph: Any, node: Any) -> None:
    relations, results, features, edges = node.args
    with graph.inserting_before(node):
        calls = [
            graph.call_module(
                f"{node.target}.{name}",
                (
                    features[source] if source == target else (features[source], features[target]),
                    edge_index,
                ),
            )
            for (name, source, target), edge_index in zip(relations, edges, strict=True)
        ]
        totals = []
        for layers, divisor in results:
            total = calls[layers[0]]
            for layer in layers[1:]:
                total = graph.call_function(torch.add, (total, calls[layer]))
            if divisor != 1:
                total = graph.call_function(torch.div, (total, int(divisor)))
            totals.append(total)
    for item in list(node.users):
        item.replace_all_uses_with(totals[item.args[1]])
        graph.erase_node(item)
    graph.erase_node(node)
