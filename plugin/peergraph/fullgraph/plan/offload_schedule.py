"""The passes over chunks of an epoch of offloaded training, and the rows that they read and write.

A dry run of a model on shapes. Sources of a layer's sum are read in the order of edges, everything
else in the order of rows. Where a layer's sum needs nothing but its result (GCN, SAGE, GIN), the
result is kept for the backward pass; with attention, the backward pass computes the layer again
(HongTu 4.2). The last layer is computed for labelled nodes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peergraph.fullgraph.plan.layer_cost import summed_widths

SOURCE, SEQUENTIAL = "source", "sequential"
FEATURES = "features"
_BEFORE = -1  # made before the first epoch
# Rows of a layer's output, and of its sum or the gradient of that, that the work on a chunk holds
# at its peak: measured, with dropout. Attention holds rows of the widest layer.
_FORWARD_ROWS, _BACKWARD_ROWS, _SUMMED_ROWS, _ATTENTION_ROWS = 4, 6, 4, 10


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


def make_schedule(widths: Sequence[int], heads: int = 0, labelled: float = 1.0) -> Schedule:
    """Returns the passes of an epoch of a model.

    The last layer's rows are computed for labelled nodes only, and never stored.

    Args:
        widths: columns of the input and of each layer's output.
        heads: of attention, by which all layers weight their edges; 0: layers that sum.
        labelled: share of the nodes that the loss is computed of.
    """
    return _attention(widths, heads, labelled) if heads else _sums(widths, labelled)


def _sums(widths: Sequence[int], labelled: float) -> Schedule:
    """The passes of a GCN, which keeps the sum of the input for all epochs.

    The product of a layer is in the pass before its sum, or in its own pass behind the sum. In the
    backward pass, a pass reads the gradients of the sums of layer l, computes rows of layer l - 1
    again from the sums of that layer, and writes the gradients of those.
    """
    layers = summed_widths(widths)
    count = len(layers)
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, 2 * count - 2)]
    passes: list[ChunkedPass] = []
    for layer, (columns, _) in enumerate(layers):
        last = layer == count - 1
        summed = f"sum of layer {layer + 1}"
        again = 2 * count - 2 - layer  # the pass that computes this layer's rows again
        share = labelled if last else 1.0
        reads, sources, writes = [], [], []
        if layer == 0:
            rows.append(StoredRows(summed, columns, SEQUENTIAL, _BEFORE, 2 * count - 2))
            reads.append(summed)
        else:
            sources.append(_rows_name(layer, layers))
            if not last:
                rows.append(StoredRows(summed, columns, SEQUENTIAL, layer, again))
                writes.append(summed)
        if not last:
            out = _rows_name(layer + 1, layers)
            rows.append(StoredRows(out, layers[layer + 1][0], SOURCE, layer, layer + 1))
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
        if layer == count - 1:
            rows.append(
                StoredRows(gradient, layers[layer][0], SOURCE, number, number, share=labelled)
            )
        writes = []
        if layer > 1:
            before = f"gradient of layer {layer}"
            rows.append(StoredRows(before, layers[layer - 1][0], SOURCE, number, number + 1))
            writes.append(before)
        _, columns_moved = _update(layer - 1, widths, layers)
        passes.append(
            ChunkedPass(
                f"backward {layer + 1}",
                (f"sum of layer {layer}",),
                (gradient,),
                tuple(writes),
                layers[layer][0],
                # Gradients of labelled rows are on the device.
                own=() if layer == count - 1 else (gradient,),
                operations=_update_gradients(layer - 1, widths, layers),
                row_columns=2 * columns_moved,
                working=_BACKWARD_ROWS * widths[layer] + _SUMMED_ROWS * layers[layer][0],
            )
        )
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
