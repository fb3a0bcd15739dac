"""Models of layers by name, for plans without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from peergraph.aggregate import layers
from peergraph.fullgraph.dry_run.model_recorder import Loss, ModelRecorder, record_epochs
from peergraph.fullgraph.dry_run.small_graph import SmallGraph, sample_rows
from peergraph.fullgraph.layout.edge_share import EdgeShare
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.fullgraph.structure.build_structure import build_structure
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.memory import Group
from peergraph.number_arguments import check_number
from peergraph.store import EDGE, NODE

LAYER_TYPES = ("gcn", "sage", "gin", "ggnn", "gat")
"""Layers that :func:`named_model` can be of."""

# More edges a node than are weighted instead of the rows.
_SMALL = SmallGraph({NODE: 997}, {EDGE: 12_007})
_MOST_COLUMNS = 1 << 24
# Layers, and columns of each, that are assumed of a model that is not known, and bytes of an edge:
# it may have attention of four heads.
_ASSUMED_COLUMNS, _ASSUMED_LAYERS, _ASSUMED_EDGE_BYTES = 256, 3, 128


def named_model(
    widths: Sequence[int], layer_type: str = "gcn", heads: int = 1, labelled: float | None = None
) -> RecordedModel:
    """Returns what an epoch of a model with layers of one type does, for plans without a script.

    It has ReLU and dropout between layers. Runs on the CPU; not collective.

        >>> peergraph.fullgraph.named_model([128, 256, 40], "gat", heads=4)

    Args:
        widths: columns of the input and of each layer's output.
        layer_type: "gcn"; "sage" or "gin", which need rows of the nodes besides sums; "ggnn", with
            gated recurrent units; "gat", attention, with the columns of all heads side by side. For
            a layer that averages its heads, as the last one of PyG's ``GAT``, name the columns of
            all heads.
        heads: of attention.
        labelled: share of the nodes that the loss is computed of; None: not known, at most all.

    Raises:
        TypeError, ValueError: no widths, an unknown type, or a number out of range.
    """
    if len(widths) < 2:
        raise ValueError(
            "widths must have the columns of the input and of each layer's output, all positive, "
            f"got {list(widths)}"
        )
    for columns in widths:
        check_number("widths", columns, 1, _MOST_COLUMNS)
    check_number("heads", heads, 1, _MOST_COLUMNS)
    if layer_type not in LAYER_TYPES:
        raise ValueError(f"layer_type must be one of {', '.join(LAYER_TYPES)}, got {layer_type!r}")
    if labelled is not None and not 0 < labelled <= 1:
        raise ValueError(f"labelled must be a share of the nodes in (0, 1], got {labelled}")
    return _record(tuple(widths), layer_type, heads, labelled)


def assumed_model(facts: GraphFacts) -> RecordedModel:
    """Returns the model that is assumed of a graph: all rows of nodes are its features."""
    rows = sum(map(sum, facts.nodes.values()))
    size = sum(sum(counts) * facts.row_bytes.get(t, 0) for t, counts in facts.nodes.items())
    columns = max(1, round(size / max(1, rows) / torch.float32.itemsize))
    model = named_model([columns, *[_ASSUMED_COLUMNS] * _ASSUMED_LAYERS])
    passes = tuple(replace(step, edge_bytes=_ASSUMED_EDGE_BYTES) for step in model.schedule.passes)
    return replace(model, schedule=replace(model.schedule, passes=passes), assumed=True)


@cache
def _record(
    widths: tuple[int, ...], layer_type: str, heads: int, labelled: float | None
) -> RecordedModel:
    name = f"{layer_type} {'-'.join(map(str, widths))}"
    if layer_type == "gat":
        name += f" with {heads} heads"
    model = _Model(widths, layer_type, heads, 1.0 if labelled is None else labelled)
    group = Group(0, 1, torch.device("cpu"), 60.0)
    recorded = record_epochs(name, group, _SMALL, model.loss_on)
    return recorded if labelled is not None else replace(recorded, labelled_bytes=None)


class _Model:
    """Layers of one type, on plain parameters."""

    def __init__(
        self, widths: tuple[int, ...], layer_type: str, heads: int, labelled: float
    ) -> None:
        self._widths, self._type, self._heads = widths, layer_type, heads
        self._labelled = labelled

    def loss_on(self, group: Group, recorder: ModelRecorder) -> Loss:
        """Returns the loss of the model on a random graph."""
        nodes, edges = _SMALL.num_nodes[NODE], _SMALL.edges(EDGE)
        layout = RowLayout.contiguous(group, nodes)
        share = EdgeShare(edges[0], edges[1], torch.arange(edges.shape[1], device="cpu"))
        structure: PartitionedStructure = build_structure(layout, layout, share, "halo")
        x = torch.randn(nodes, self._widths[0], device="cpu")
        if recorder.offloads:
            graph = recorder.offload(group, {NODE: layout}, {EDGE: structure})  # type: ignore[dict-item]
            structure, rows = graph.structures[EDGE], graph.rows(x, layout, "features")
        else:
            rows = from_local(x, layout)  # type: ignore[assignment]
        # Not of all: selections of all rows are passes of their own.
        share_of_loss = torch.arange(1000, device="cpu") < min(999, 1000 * self._labelled)
        mask = from_local(sample_rows(share_of_loss, nodes), layout)
        weights = [self._parameters(*pair) for pair in pairwise(self._widths)]

        def loss() -> Tensor:
            h: Tensor = rows
            for number, parameters in enumerate(weights):
                h = self._layer(structure, h, parameters)
                if number + 1 < len(weights):
                    h = F.dropout(F.relu(h))
            out = h[mask]
            return F.cross_entropy(out, out.new_zeros(len(out), dtype=torch.int64))

        return loss

    def _parameters(self, before: int, after: int) -> dict[str, Tensor]:
        shapes = {"weight": (after, before)}
        if self._type == "sage":
            shapes["root"] = (after, before)
        if self._type == "gat":
            shapes |= {"left": (self._heads, self._columns(after)),
                       "right": (self._heads, self._columns(after))}  # fmt: skip
            shapes["weight"] = self._heads * self._columns(after), before
        if self._type == "ggnn":
            shapes |= {"product": (after, after), "gates": (3 * after, after),
                       "own": (3 * after, after)}  # fmt: skip
        return {
            name: torch.randn(size, device="cpu").requires_grad_() for name, size in shapes.items()
        }

    def _layer(
        self, structure: PartitionedStructure, h: Tensor, parameters: dict[str, Tensor]
    ) -> Tensor:
        weight = parameters["weight"]
        if self._type == "gcn":
            return layers.gcn(structure, h, weight=weight, add_self_loops=True)
        if self._type == "sage":
            return layers.sage(structure, h, weight, self_weight=parameters["root"])
        if self._type == "gin":
            return F.linear(layers.gin(structure, h, 0.0), weight)
        product = F.linear(h, weight)
        if self._type == "ggnn":
            sums = structure.spmm("copy_u", "sum", F.linear(product, parameters["product"]))
            return torch.gru_cell(sums, product, parameters["gates"], parameters["own"])
        by_head = product.view(-1, self._heads, len(weight) // self._heads)
        out = layers.gat(structure, by_head, parameters["left"], parameters["right"])
        return out.view(-1, len(weight))

    def _columns(self, width: int) -> int:
        """Columns of a head: a width that is no multiple of the heads is rounded up."""
        return -(-width // self._heads)
