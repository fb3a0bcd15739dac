"""The passes over chunks of an epoch of offloaded training, and the rows that they read and write.

A dry run of a model on shapes. Sources of a layer's sum are read in the order of edges, everything
else in the order of rows. Where a layer's sum needs nothing but its result (GCN, SAGE, GIN), the
result is kept for the backward pass; with attention, the backward pass computes the layer again
(HongTu 4.2). The last layer is computed for labelled nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peergraph.fullgraph.plan.layer_cost import summed_widths

SOURCE, SEQUENTIAL = "source", "sequential"
FEATURES = "features"
_BEFORE = -1  # made before the first epoch
# Rows of a layer's output, and of its sum or the gradient of that, that the work on a chunk holds
# at its peak: measured, with dropout. Attention holds rows of the widest layer.
_FORWARD_ROWS, _BACKWARD_ROWS, _SUMMED_ROWS, _ATTENTION_ROWS = 4, 6, 4, 10
# Rows of a layer's output that the work on a chunk with gated recurrent units holds.
_GATED_ROWS = 14


@dataclass(frozen=True)
class StoredRows:
    """A value for each node that passes leave for later passes.

    Args:
        name: as printed.
        columns: elements of a row.
        role: "source", read in the order of edges, or "sequential".
        first, last: the passes in which it exists, counted from 0.
        share: of the nodes, how many have such a row.
    """

    name: str
    columns: int
    role: str
    first: int
    last: int
    share: float = 1.0


@dataclass(frozen=True)
class ChunkedPass:
    """One pass over all chunks.

    Args:
        name: as printed.
        reads: names of rows that are read in order.
        sources: names of rows that are read in the order of edges.
        writes: names of rows that are written.
        edge_columns: elements that are read for each edge.
        adds: names of rows that gradients are added to in the order of edges.
        own: names of `sources` of which each destination reads its own row, too (self loops).
        share: of the nodes, how many are destinations.
        operations: floating-point operations of matrix products for each destination.
        row_columns: elements that functions of rows read and write for each destination.
        working: elements that the computation holds for each destination at its peak.
    """

    name: str
    reads: tuple[str, ...]
    sources: tuple[str, ...]
    writes: tuple[str, ...]
    edge_columns: int
    adds: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    share: float = 1.0
    operations: int = 0
    row_columns: int = 0
    working: int = 0


@dataclass(frozen=True)
class Schedule:
    """The passes of an epoch, and the rows between them."""

    passes: tuple[ChunkedPass, ...]
    rows: tuple[StoredRows, ...]

    def columns(self, name: str) -> int:
        """Columns of stored rows."""
        return self.find(name).columns

    def find(self, name: str) -> StoredRows:
        """Returns stored rows by name."""
        return next(rows for rows in self.rows if rows.name == name)


LAYER_TYPES = ("gcn", "sage", "gin", "ggnn")
"""Layers that sum, by what they need besides their sums."""


def make_schedule(
    widths: Sequence[int], heads: int = 0, labelled: float = 1.0, layer_type: str = "gcn"
) -> Schedule:
    """Returns the passes of an epoch of a model.

    The last layer's rows are computed for labelled nodes only, and never stored.

    Args:
        widths: columns of the input and of each layer's output.
        heads: of attention, by which all layers weight their edges; 0: layers that sum.
        labelled: share of the nodes that the loss is computed of.
        layer_type: one of :data:`LAYER_TYPES`, of layers that sum.
    """
    if heads:
        return _attention(widths, heads, labelled)
    if layer_type == "ggnn":
        return _gated(widths, labelled)
    return _sums(widths, labelled, layer_type)


def _sums(widths: Sequence[int], labelled: float, layer_type: str) -> Schedule:
    """The passes of a GCN, GraphSAGE or GIN, which keep the sum of the input for all epochs.

    The product of a layer is in the pass before its sum, or in its own pass behind the sum; GIN has
    it behind. In the backward pass, a pass reads the gradients of the sums of layer l, computes
    rows of layer l - 1 again from the sums of that layer, and writes the gradients of those.
    GraphSAGE and GIN read the features beside their sum. GraphSAGE multiplies a node's own row by a
    matrix of its own: it needs that row again, and has a gradient of it.
    """
    layers = summed_widths(widths)
    if layer_type == "gin":
        layers = [(before, True) for before in widths[:-1]]
    if layer_type == "sage":  # It multiplies first only where that makes rows narrower.
        layers = [
            (columns, sums_first or columns == before)
            for (columns, sums_first), before in zip(layers, widths[:-1], strict=True)
        ]
    own_rows = [FEATURES] if layer_type in ("sage", "gin") else []
    count = len(layers)
    computes_labelled = layer_type == "sage" and count > 1 and not layers[-1][1]
    # With the pass that adds gradients of labelled nodes' own rows to those of the others.
    adds_labelled = computes_labelled and count > 2
    total = 2 * count - 1 + adds_labelled

    def backward(layer: int) -> int:
        """The pass that reads the gradient of the sums of a layer, counted from 0."""
        return total - layer - adds_labelled * (layer == count - 1)

    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, total - 1)]
    passes: list[ChunkedPass] = []
    for layer, (columns, _) in enumerate(layers):
        last = layer == count - 1
        summed = f"sum of layer {layer + 1}"
        share = labelled if last else 1.0
        reads, sources, writes = [], [], []
        if layer == 0:
            rows.append(StoredRows(summed, columns, SEQUENTIAL, _BEFORE, total - 1))
            reads += [summed, *own_rows]
        else:
            sources.append(_rows_name(layer, layers))
            if last and computes_labelled:
                # Labelled nodes' own rows are computed again.
                reads.append(f"sum of layer {layer}")
                reads.append(_rows_name(layer - 1, layers) if layer > 1 else FEATURES)
            if not last:
                until = backward(layer + 1) + (adds_labelled and layer + 2 == count)
                rows.append(StoredRows(summed, columns, SEQUENTIAL, layer, until))
                writes.append(summed)
        if not last:
            out = _rows_name(layer + 1, layers)
            needed = layer_type == "sage" and layer + 2 < count
            until = backward(layer + 2) if needed else layer + 1
            rows.append(StoredRows(out, layers[layer + 1][0], SOURCE, layer, until))
            writes.append(out)
        operations, columns_moved = _update(layer, widths, layers)
        passes.append(
            ChunkedPass(
                f"forward {layer + 1}",
                tuple(reads),
                tuple(sources),
                tuple(writes),
                columns if layer else 0,
                own=tuple(sources),
                share=share,
                operations=operations,
                row_columns=columns_moved,
                working=_FORWARD_ROWS * widths[layer + 1] + _SUMMED_ROWS * columns,
            )
        )
    for layer in range(count - 1, 0, -1):
        gradient, number = f"gradient of layer {layer + 1}", len(passes)
        is_last = layer == count - 1
        if is_last:
            columns = layers[layer][0]
            rows.append(StoredRows(gradient, columns, SOURCE, number, number, share=labelled))
        reads, writes = [f"sum of layer {layer}"], []
        if layer == 1:
            reads += own_rows
        if layer_type == "sage":
            if not is_last:
                reads.append(f"gradient of own rows of layer {layer + 1}")
            if layer > 1:
                reads.append(_rows_name(layer - 1, layers))
                own = f"gradient of own rows of layer {layer}"
                rows.append(
                    StoredRows(own, widths[layer - 1], SEQUENTIAL, number, backward(layer - 1))
                )
                writes.append(own)
        if layer > 1:
            before = f"gradient of layer {layer}"
            part = f"{before}, but labelled" if is_last and adds_labelled else before
            rows.append(StoredRows(part, layers[layer - 1][0], SOURCE, number, number + 1))
            writes.append(part)
        _, columns_moved = _update(layer - 1, widths, layers)
        passes.append(
            ChunkedPass(
                f"backward {layer + 1}",
                tuple(reads),
                (gradient,),
                tuple(writes),
                layers[layer][0],
                # Gradients of labelled rows are on the device.
                own=() if is_last or layer_type == "sage" else (gradient,),
                operations=_update_gradients(layer - 1, widths, layers),
                row_columns=2 * columns_moved,
                working=_BACKWARD_ROWS * widths[layer] + _SUMMED_ROWS * layers[layer][0],
            )
        )
        if layer > 1 and part != before:
            columns = layers[layer - 1][0]
            rows.append(StoredRows(before, columns, SOURCE, number + 1, number + 2))
            passes.append(ChunkedPass(f"labelled {layer}", (part,), (), (before,), 0,
                                      row_columns=3 * columns, working=3 * columns))  # fmt: skip
    return Schedule(tuple(passes), tuple(rows))


def _gated(widths: Sequence[int], labelled: float) -> Schedule:
    """The passes of a gated graph network, of linear maps, sums of products, and gates.

    Inputs of the gates are computed again from the features and from the sums of all layers before,
    so each of these sums gets parts of its gradient in several passes, which are added in a pass of
    their own.
    """
    count = len(widths) - 1
    total = 3 * count
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, total - 1)]
    passes: list[ChunkedPass] = []

    def add(name: str, reads: list[str], sources: list[str], writes: list[str], layer: int,
            **options: Any) -> None:  # fmt: skip
        columns = widths[layer]
        passes.append(
            ChunkedPass(name, tuple(reads), tuple(sources), tuple(writes),
                        columns if sources else 0, row_columns=20 * columns,
                        working=_GATED_ROWS * columns, **options)
        )  # fmt: skip

    def before(layer: int) -> list[str]:
        """What the input of a layer's gates is computed from."""
        return [f"sum of layer {number}" for number in range(layer - 1, 0, -1)] + [FEATURES]

    def operations(layer: int) -> int:
        """Of the products of a layer: its linear map, that of messages, and the gates."""
        return 2 * widths[layer] * (widths[layer - 1] + 7 * widths[layer])

    def product(layer: int, at: int) -> str:
        name = f"product of layer {layer}"
        rows.append(StoredRows(name, widths[layer], SOURCE, at, at + 1))
        return name

    add("product 1", [FEATURES], [], [product(1, 0)], 1, operations=operations(1))
    for layer in range(1, count):
        summed = f"sum of layer {layer}"
        # Until the gradients of the sum have been added.
        last = count + 2 * (count - layer)
        rows.append(StoredRows(summed, widths[layer], SEQUENTIAL, layer, last))
        writes = [product(layer + 1, layer), summed]
        add(f"forward {layer}", before(layer), [f"product of layer {layer}"], writes, layer,
            operations=operations(layer + 1))  # fmt: skip
    add(f"forward {count}", before(count), [f"product of layer {count}"], [], count, share=labelled,
        operations=operations(count))  # fmt: skip
    for layer in range(count, 0, -1):
        gradient, at = f"gradient of layer {layer}", len(passes)
        if layer == count:
            rows.append(StoredRows(gradient, widths[layer], SOURCE, at, at, share=labelled))
        parts = []
        for number in range(layer - 1, 0, -1):
            parts.append(f"part {count - layer + 1} of the gradient of layer {number}")
            until = count + 2 * (count - number)
            rows.append(StoredRows(parts[-1], widths[number], SEQUENTIAL, at, until))
        add(f"backward {layer}", before(layer), [gradient], parts, layer,
            operations=3 * operations(layer))  # fmt: skip
        if layer > 1:
            number = layer - 1
            found = [f"part {part} of the gradient of layer {number}"
                     for part in range(1, count - number + 1)]  # fmt: skip
            whole = f"gradient of layer {number}"
            rows.append(StoredRows(whole, widths[number], SOURCE, at + 1, at + 2))
            add(f"sum of gradients {number}", found, [], [whole], number)
    return Schedule(tuple(passes), tuple(rows))


def _update(
    layer: int, widths: Sequence[int], layers: Sequence[tuple[int, bool]]
) -> tuple[int, int]:
    """Returns operations, and elements read and written, of what follows a layer's sum in a pass.

    These are the layer's product, if it is behind the sum, the activation, and the product of the
    next layer, if it comes before that one's sum.
    """
    operations, moved = 0, 4 * widths[layer + 1]
    if layers[layer][1]:
        operations += 2 * widths[layer] * widths[layer + 1]
        moved += widths[layer]
    if layer + 1 < len(layers) and not layers[layer + 1][1]:
        operations += 2 * widths[layer + 1] * widths[layer + 2]
        moved += widths[layer + 2]
    return operations, moved


def _update_gradients(layer: int, widths: Sequence[int], layers: Sequence[tuple[int, bool]]) -> int:
    """Returns the operations of the gradients of what follows a layer's sum in a pass."""
    operations = 0
    if layers[layer][1]:
        # The product is computed again; the features need no gradient.
        operations += (3 if layer else 2) * 2 * widths[layer] * widths[layer + 1]
    if layer + 1 < len(layers) and not layers[layer + 1][1]:
        operations += 2 * 2 * widths[layer + 1] * widths[layer + 2]
    return operations


def _rows_name(layer: int, layers: Sequence[tuple[int, bool]]) -> str:
    """The name of the rows that a layer sums."""
    return f"output of layer {layer}" if layers[layer][1] else f"product of layer {layer + 1}"


def _attention(widths: Sequence[int], heads: int, labelled: float) -> Schedule:
    """Each layer multiplies, then weights its edges, and is computed again in the backward pass.

    Rows of sources and of destinations have an element for each head besides, from which the
    weights of edges are computed.
    """
    count = len(widths) - 1
    total = 3 * count + 1
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, total - 1)]
    passes: list[ChunkedPass] = []

    def product(layer: int, at: int) -> tuple[str, str, str]:
        """Adds the rows that the product of a layer leaves, and returns their names."""
        columns, last = widths[layer], _attention_again(layer, count)
        names = (f"product of layer {layer}", f"sources of layer {layer}",
                 f"destinations of layer {layer}")  # fmt: skip
        rows.append(StoredRows(names[0], columns, SOURCE, at, last))
        rows.append(StoredRows(names[1], heads, SOURCE, at, last))
        rows.append(StoredRows(names[2], heads, SEQUENTIAL, at, last))
        return names

    def multiplied(layer: int) -> tuple[int, int]:
        """Operations of the product of a layer, and elements that it reads and writes."""
        return 2 * widths[layer - 1] * widths[layer], 4 * widths[layer - 1] + widths[layer]

    operations, moved = multiplied(1)
    passes.append(ChunkedPass("product 1", (FEATURES,), (), product(1, 0), 0,
                              operations=operations, row_columns=moved))  # fmt: skip
    for layer in range(1, count + 1):
        last = layer == count
        writes: tuple[str, ...] = ()
        operations, moved = (0, 4 * widths[layer]) if last else multiplied(layer + 1)
        if not last:
            out = f"output of layer {layer}"
            rows.append(
                StoredRows(out, widths[layer], SEQUENTIAL, layer,
                           _attention_again(layer + 1, count) + 1)
            )  # fmt: skip
            writes = (out, *product(layer + 1, layer))
        passes.append(
            ChunkedPass(
                f"forward {layer}",
                () if last else (f"destinations of layer {layer}",),
                (f"product of layer {layer}", f"sources of layer {layer}"),
                writes,
                widths[layer] + 2 * heads,
                share=labelled if last else 1.0,
                operations=operations,
                row_columns=moved,
            )
        )
    for layer in range(count, 0, -1):
        at, last = len(passes), layer == count
        adds = (f"product gradient of layer {layer}", f"sources gradient of layer {layer}")
        rows.append(StoredRows(adds[0], widths[layer], SOURCE, at, at + 1))
        rows.append(StoredRows(adds[1], heads, SOURCE, at, at + 1))
        gradients = f"destinations gradient of layer {layer}"
        if not last:
            rows.append(StoredRows(gradients, heads, SEQUENTIAL, at, at + 1))
        passes.append(
            ChunkedPass(
                f"backward {layer}",
                () if last else (f"gradient of layer {layer}", f"destinations of layer {layer}"),
                (f"product of layer {layer}", f"sources of layer {layer}"),
                () if last else (gradients,),
                # For each edge two rows of its source are read, and one gradient is added.
                3 * widths[layer] + 6 * heads,
                adds,
                share=labelled if last else 1.0,
                row_columns=8 * widths[layer],
            )
        )
        before = f"output of layer {layer - 1}" if layer > 1 else FEATURES
        writes = ()
        if layer > 1:
            gradient = f"gradient of layer {layer - 1}"
            rows.append(StoredRows(gradient, widths[layer - 1], SEQUENTIAL, at + 1, at + 2))
            writes = (gradient,)
        operations, moved = multiplied(layer)
        passes.append(
            ChunkedPass(
                f"weights {layer}",
                (*adds, *(() if last else (gradients,)), before),
                (),
                writes,
                0,
                operations=(2 if layer > 1 else 1) * operations,
                row_columns=2 * moved,
            )
        )
    working = _ATTENTION_ROWS * max(widths)
    passes = [replace(step, working=working) for step in passes]
    return Schedule(tuple(passes), tuple(rows))


def _attention_again(layer: int, count: int) -> int:
    """The number of the pass that computes a layer of attention again."""
    return 1 + count + 2 * (count - layer)
