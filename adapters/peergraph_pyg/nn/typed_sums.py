"""Runs the SAGE and Graph layers of all relations of a HeteroConv as one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from peergraph.aggregate import Relation, RelationBlocks, RelationColumns, layers, supports
from peergraph.aggregate.layers import SumRelation, TypedResult, without_autocast
from peergraph.integration import Unsupported, has_static_shapes, is_explaining, note, require

from .. import compat
from ..data.batch_structures import row_counter
from ..data.csc_cache import Attachments, joined_structure, sizes_with_edges
from ..data.lazy_features import is_plain
from . import convs
from .features import kind_of
from .isolated_rows import with_isolated_rows
from .joined_layers import Call, EdgeType, JoinedLayers, note_single_layers
from .linear_maps import ProductDtypes, is_plain_map, product_dtype, weight_and_bias
from .typed_inputs import (
    all_rows,
    groups_of,
    is_edge_index,
    is_matrix,
    need_gradients,
    rows_in_place,
)


def joined_sums(relations: Iterable[tuple[EdgeType, Any]], call: Call) -> list[JoinedLayers]:
    """Returns the layers of relations that can run as one operation, at least two in each.

    Args:
        relations: edge types and their layers.
        call: the arguments of the HeteroConv.
    """
    by_kind: dict[_Kind, dict[EdgeType, _Parameters]] = {}
    classes: set[type] = set()
    dtypes = ProductDtypes()
    features: dict[str, _Features | None] = {}
    for edge_type, layer in relations:
        if type(layer) in (convs.SAGEConv, convs.GraphConv) and edge_type in call.edges:
            try:
                if type(layer) not in classes:  # as often as there are classes, not relations
                    layer._require_class(*_STEPS)
                    classes.add(type(layer))
                for node_type in (edge_type[0], edge_type[2]):
                    if node_type not in features:  # likewise for node types
                        features[node_type] = _features(call.x.get(node_type))
                kind, parameters = _kind(edge_type, layer, call, features, dtypes)
            except Unsupported as reason:
                note(f"forward: {' '.join(edge_type)} alone, {reason}")
            else:
                by_kind.setdefault(kind, {})[edge_type] = parameters
    note_single_layers(by_kind.values())
    return [
        _JoinedSums(parameters_of_kind, kind, call)
        for kind, parameters_of_kind in by_kind.items()
        if len(parameters_of_kind) > 1
    ]


_STEPS = ("propagate", "forward")
"""The methods that a joined layer does not call."""


class _Kind(NamedTuple):
    """What the relations of one operation have in common."""

    reduce: str
    out_channels: int
    device: torch.device
    dtype: torch.dtype
    """Of products."""
    parameters: torch.dtype


class _Parameters(NamedTuple):
    """The parameters of a relation: those of :class:`SumRelation`."""

    weight: Tensor
    self_weight: Tensor | None
    bias: Tensor | None


class _Features(NamedTuple):
    """What relations ask about the features of a node type."""

    x: Tensor
    device: torch.device
    dtype: torch.dtype
    columns: int


def _features(x: Any) -> _Features | None:
    """Returns what relations ask about features; None unless they are a matrix with columns, on a
    device that has kernels.
    """
    if not is_matrix(x) or not supports(x.device):
        return None
    columns = int(x.shape[1])
    return _Features(x, x.device, x.dtype, columns) if columns else None


def _kind(
    edge_type: EdgeType,
    layer: Any,
    call: Call,
    features: Mapping[str, _Features | None],
    dtypes: ProductDtypes,
) -> tuple[_Kind, _Parameters]:
    """Returns the kind of a relation, whose layer's class is supported, and its parameters; raises
    Unsupported if it runs alone. Conditions are written out: a model may have hundreds of layers.
    """
    edges, weights = call.edges[edge_type], call.edge_weights.get(edge_type)
    maps = layer._modules
    if type(layer) is convs.SAGEConv:
        if layer.project:
            raise Unsupported("its sources are projected first")
        if layer.normalize:
            raise Unsupported("its results are normalised")
        require(weights is None, "SAGEConv takes no weights of edges")
        to_rows, to_self = maps["lin_l"], maps["lin_r"] if layer.root_weight else None
    else:
        to_rows, to_self = maps["lin_rel"], maps["lin_root"]
    if compat.has_hooks(layer):
        raise Unsupported("there are hooks of the layer")
    if not is_edge_index(edges):
        raise Unsupported(f"edge_index is a {kind_of(edges)}")
    reduce = layer._require_own_settings(steps=_STEPS)
    if reduce not in ("sum", "mean"):
        raise Unsupported(f"aggr is {layer.aggr}")
    device = edges.device
    source, target = features[edge_type[0]], features[edge_type[2]]
    for node_type, end in ((edge_type[0], source), (edge_type[2], target)):
        if end is None or end.device != device:
            kind = kind_of(call.x.get(node_type))
            raise Unsupported(f"x is a {kind}, without columns or on another device")
    assert source is not None
    assert target is not None
    weight, bias = _weight_and_bias(to_rows, source)
    parameters = weight.dtype
    if bias is not None and (not is_plain(bias) or bias.dtype != parameters):
        raise Unsupported("the bias is of another kind")
    self_weight = None
    if to_self is not None:
        self_weight, self_bias = _weight_and_bias(to_self, target)
        if self_bias is not None or self_weight.dtype != parameters:
            raise Unsupported("a map is the user's, or has another dtype")
    dtype = dtypes.of(device, parameters, source.dtype, target.dtype)
    if dtype is None:
        raise Unsupported(f"x is {source.dtype} and {target.dtype}, weights {parameters}")
    if weights is not None:
        _require_weights(weights, edges, source.x)
    kind_of_sums = _Kind(reduce, weight.shape[0], device, dtype, parameters)
    return kind_of_sums, _Parameters(weight, self_weight, bias)


def _weight_and_bias(linear: Any, x: _Features) -> tuple[Tensor, Any]:
    """Returns the parameters of a map of features; raises Unsupported unless it is PyG's own."""
    if not is_plain_map(linear):
        raise Unsupported("a map is the user's, or has hooks")
    own = linear._parameters
    try:
        weight, bias = own["weight"], own["bias"]
    except KeyError:  # one that is no parameter
        weight, bias = weight_and_bias(linear)
    if not is_plain(weight) or weight.device != x.device or weight.shape[1] != x.columns:
        raise Unsupported("weights do not fit")
    return weight, bias


def _require_weights(weights: Any, edges: Tensor, x: Tensor) -> None:
    """Raises Unsupported for weights of edges that a kernel cannot multiply rows by."""
    require(is_plain(weights), f"edge weights are {kind_of(weights)}")
    needs_gradient = weights.requires_grad and torch.is_grad_enabled()
    require(not needs_gradient, "edge weights need gradients")
    shape, count = tuple(weights.shape), edges.shape[1]
    fits = shape in ((count,), (count, 1)) and weights.device == x.device
    require(fits, f"edge weights are {list(shape)} on {weights.device}")
    has_dtype = product_dtype(x.device, weights.dtype, x.dtype) is not None
    require(has_dtype, f"edge weights are {weights.dtype}")


_Structure = TypeVar("_Structure", RelationBlocks, RelationColumns)


class _JoinedSums(JoinedLayers):
    """SAGE and Graph layers of one kind.

    Args:
        layers: the parameters of the layers by edge type.
        kind: what they have in common.
        call: the arguments of the HeteroConv.
    """

    layers: Mapping[EdgeType, _Parameters]

    def __init__(self, layers: Mapping[EdgeType, _Parameters], kind: _Kind, call: Call) -> None:
        super().__init__(layers)
        self._kind, self._call = kind, call

    def sums(self, scales: Mapping[str, float]) -> dict[str, Tensor]:
        node_types = list(dict.fromkeys(edge_type[2] for edge_type in self.layers))
        outputs = [node_types.index(edge_type[2]) for edge_type in self.layers]
        factors = [scales[node_type] for node_type in node_types]
        return dict(zip(node_types, self._results(node_types, outputs, factors), strict=True))

    def apart(self) -> dict[EdgeType, Tensor]:
        node_types = [edge_type[2] for edge_type in self.layers]
        count = len(node_types)
        results = self._results(node_types, list(range(count)), [1.0] * count)
        return dict(zip(self.layers, results, strict=True))

    def _results(
        self, node_types: list[str], outputs: list[int], factors: list[float]
    ) -> list[Tensor]:
        """Returns the results, of node types; `outputs` are those of the relations."""
        kind, call = self._kind, self._call
        used = {end for edge_type in self.layers for end in (edge_type[0], edge_type[2])}
        # Types with the same rows are read once.
        by_rows: dict[int, int] = {}
        names = [node_type for node_type in call.x if node_type in used]
        numbers = {t: by_rows.setdefault(id(call.x[t]), len(by_rows)) for t in names}
        reads = [0] * len(by_rows)
        for edge_type in self.layers:
            reads[numbers[edge_type[0]]] += call.edges[edge_type].shape[1]
        firsts = {numbers[t]: call.x[t] for t in names}
        x = [firsts[i] for i in range(len(reads))]
        has_own = [False] * len(node_types)
        parameters, relations, weights = [], [], []
        for output, (edge_type, of_layer) in zip(outputs, self.layers.items(), strict=True):
            has_own[output] |= of_layer.self_weight is not None
            parameters.append(SumRelation(output, *of_layer))
            source = numbers[edge_type[0]]
            edges, rows = call.edges[edge_type], x[source].shape[0]
            relations.append(Relation(edges, rows, output, sources=source))
            weights.append(call.edge_weights.get(edge_type))
        own = [
            numbers[node_type] if there else None
            for node_type, there in zip(node_types, has_own, strict=True)
        ]
        sizes = [call.x[node_type].shape[0] for node_type in node_types]
        if has_static_shapes():
            sizes = sizes_with_edges(relations, sizes)
        inputs = _Inputs(x, reads, relations, parameters, weights, sizes, own, factors)
        # A static shape is known of sums before products only.
        multiplies_first = not has_static_shapes() and inputs.multiply_first(kind)
        results = without_autocast(
            lambda: inputs.products_first(kind) if multiplies_first else inputs.sums_first(kind)
        )
        if is_explaining():
            order = "after their products" if multiplies_first else "before their products"
            count = len(self.layers)
            note(f"forward: peergraph, {kind.reduce} of {count} relations in one pass, {order}")
        return [
            with_isolated_rows(result, call.x[node_type])
            for result, node_type in zip(results, node_types, strict=True)
        ]


@dataclass(frozen=True)
class _Inputs:
    """What an operation reads.

    Args:
        x: features.
        reads: of each of the features, the rows that a kernel reads.
        relations: the edges, from features to results.
        parameters: of each relation.
        weights: of each relation's edges, or None.
        sizes: of each result, the number of destinations.
        own: of each result, the position of its destinations' features, or None.
        factors: of each result.
    """

    x: list[Tensor]
    reads: list[int]
    relations: list[Relation]
    parameters: list[SumRelation]
    weights: list[Any]
    sizes: list[int]
    own: list[int | None]
    factors: list[float]

    def multiply_first(self, kind: _Kind) -> bool:
        """Returns whether it takes less time to multiply rows before they are summed than after."""
        sizes = [
            layers.RelationSize(
                each.edge_index.shape[1],
                each.num_sources,
                self.sizes[each.destinations],
                self.x[each.sources or 0].shape[1],
                kind.out_channels,
            )
            for each in self.relations
        ]
        return layers.relations_multiply_first(sizes, kind.device)

    def sums_first(self, kind: _Kind) -> list[TypedResult]:
        """Returns the results of the first nodes; products are behind sums."""
        pairs = zip(self.x, self.reads, strict=True)
        features = [rows_in_place(x, reads, kind.dtype) for x, reads in pairs]
        groups, num_rows = groups_of(features), [x.shape[0] for x in self.x]
        weighted = any(each is not None for each in self.weights)
        edge_indices = [each.edge_index for each in self.relations]
        edges = self._structure(
            ("blocks", *self.own, -1, *groups, weighted),
            lambda attachments, gradients: RelationBlocks(
                self.relations,
                num_rows,
                self.sizes,
                self.own,
                groups,
                weighted=weighted,
                check=attachments is None and not has_static_shapes(),
                gradients=gradients and need_gradients(features),
                # A loader knows them of its batches.
                bounds=None
                if attachments is None
                else sizes_with_edges(self.relations, self.sizes, attachments),
                count_rows=row_counter(attachments, edge_indices),
                min_rows=row_counter(attachments, edge_indices, exact=False),
                fixed=has_static_shapes(),
            ),
        )
        if is_explaining():
            matrices = ", ".join(str(group.matrix) for group in edges.groups)
            note(f"structure: {len(self.relations)} relations as one matrix, {matrices}")
        return layers.typed_sage(
            edges,
            features,
            self.parameters,
            reduce=kind.reduce,
            scales=self.factors,
            edge_weights=self.weights,
            dtype=kind.dtype,
        )

    def products_first(self, kind: _Kind) -> list[TypedResult]:
        """Returns the results of the first nodes; sums are behind products."""
        edges = self._structure(
            ("columns",),
            lambda attachments, gradients: RelationColumns.of_relations(
                self.relations,
                [x.shape[0] for x in self.x],
                self.sizes,
                check=attachments is None,
                gradients=gradients,
            ),
        )
        if is_explaining():
            note(f"structure: {len(self.relations)} relations as one matrix, {edges.matrix}")
        return layers.typed_sage_of_products(
            edges,
            [all_rows(x, kind.dtype) for x in self.x],
            self.parameters,
            [each.sources or 0 for each in self.relations],
            self.own,
            reduce=kind.reduce,
            scales=self.factors,
            edge_weights=self.weights,
            dtype=kind.dtype,
        )

    def _structure(
        self, key: tuple[Any, ...], make: Callable[[Attachments, bool], _Structure]
    ) -> _Structure:
        """Returns the joined edges, made once as long as no edge index is written."""
        ends = tuple([(each.sources, each.destinations) for each in self.relations])
        num_rows = tuple([x.shape[0] for x in self.x])
        tensors = [relation.edge_index for relation in self.relations]
        return joined_structure(tensors, (*key, ends, num_rows, tuple(self.sizes)), make)
