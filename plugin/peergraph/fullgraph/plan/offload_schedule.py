"""The passes over chunks of an epoch of offloaded training, and the rows that they read and write.

A dry run of a model on shapes. Sources of a layer's sum are read in the order of edges, everything
else in the order of rows. Where a layer's sum needs nothing but its result (GCN, SAGE, GIN), the
result is kept for the backward pass; with attention, the backward pass computes the layer again
(HongTu 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peergraph.fullgraph.plan.layer_cost import summed_widths

SOURCE, SEQUENTIAL = "source", "sequential"
FEATURES = "features"
_BEFORE = -1  # made before the first epoch


@dataclass(frozen=True)
class StoredRows:
    """A value for each node that passes leave for later passes.

    Args:
        name: as printed.
        columns: elements of a row.
        role: "source", read in the order of edges, or "sequential".
        first, last: the passes in which it exists, counted from 0.
    """

    name: str
    columns: int
    role: str
    first: int
    last: int


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
    """

    name: str
    reads: tuple[str, ...]
    sources: tuple[str, ...]
    writes: tuple[str, ...]
    edge_columns: int
    adds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The passes of an epoch, and the rows between them."""

    passes: tuple[ChunkedPass, ...]
    rows: tuple[StoredRows, ...]
    widest: int
    """Columns of the widest rows, those of the last layer included."""

    def columns(self, name: str) -> int:
        """Columns of stored rows."""
        return next(rows.columns for rows in self.rows if rows.name == name)


def make_schedule(widths: Sequence[int], heads: int = 0) -> Schedule:
    """Returns the passes of an epoch of a model.

    The last layer's rows are computed for labelled nodes only, and never stored.

    Args:
        widths: columns of the input and of each layer's output.
        heads: of attention, by which all layers weight their edges; 0: layers that sum.
    """
    return _attention(widths) if heads else _sums(widths)


def _sums(widths: Sequence[int]) -> Schedule:
    layers = summed_widths(widths)
    count = len(layers)
    kept = layers[0][1]
    backward = 1 if kept else 0
    total = count + (count - 1 if kept else count) + (0 if kept else 1)
    at = 0 if kept else 1  # the pass of layer 0's sum; a product of the input comes before
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, total - 1)]
    passes = []
    if not kept:
        rows.append(StoredRows("product of layer 1", layers[0][0], SOURCE, 0, 1))
        passes.append(ChunkedPass("product 1", (FEATURES,), (), ("product of layer 1",), 0))
    last_use = {layer: _backward_pass(layer + 1, count, at) for layer in range(count - 1)}
    for layer, (columns, _) in enumerate(layers):
        summed = f"sum of layer {layer + 1}"
        reads, sources, writes = [], [], []
        if layer == 0 and kept:
            rows.append(StoredRows(summed, columns, SEQUENTIAL, _BEFORE, total - 1))
            reads.append(summed)
        else:
            sources.append(_rows_name(layer, layers))
            if layer < count - 1:
                rows.append(StoredRows(summed, columns, SEQUENTIAL, at + layer, last_use[layer]))
                writes.append(summed)
        if layer < count - 1:
            out = _rows_name(layer + 1, layers)
            rows.append(StoredRows(out, layers[layer + 1][0], SOURCE, at + layer, at + layer + 1))
            writes.append(out)
        edges = 0 if layer == 0 and kept else columns
        passes.append(ChunkedPass(f"forward {layer + 1}", tuple(reads), tuple(sources),
                                  tuple(writes), edges))  # fmt: skip
    for layer in range(count - 1, backward - 1, -1):
        gradient, number = f"gradient of layer {layer + 1}", _backward_pass(layer, count, at)
        # Rows of the last layer's gradient exist for labelled nodes only.
        sources = [gradient] if layer < count - 1 else []
        reads = [f"sum of layer {layer}"] if layer else [FEATURES]
        writes = []
        if layer > backward:
            before = f"gradient of layer {layer}"
            rows.append(StoredRows(before, layers[layer - 1][0], SOURCE, number, number + 1))
            writes.append(before)
        passes.append(ChunkedPass(f"backward {layer + 1}", tuple(reads), tuple(sources),
                                  tuple(writes), layers[layer][0]))  # fmt: skip
    return Schedule(tuple(passes), tuple(rows), max(widths))


def _rows_name(layer: int, layers: Sequence[tuple[int, bool]]) -> str:
    """The name of the rows that a layer sums."""
    return f"output of layer {layer}" if layers[layer][1] else f"product of layer {layer + 1}"


def _backward_pass(layer: int, count: int, at: int) -> int:
    """The number of the backward pass of a layer, counted from 0 as the layer is."""
    return at + count + (count - 1 - layer)


def _attention(widths: Sequence[int]) -> Schedule:
    """Each layer multiplies, then weights its edges, and is computed again in the backward pass."""
    count = len(widths) - 1
    total = 2 * count + 2
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, _BEFORE, total - 1)]
    passes = [ChunkedPass("product 1", (FEATURES,), (), ("product of layer 1",), 0)]
    for layer in range(1, count + 1):
        product, columns = f"product of layer {layer}", widths[layer]
        again = 1 + count + (count - layer)
        rows.append(StoredRows(product, columns, SOURCE, layer - 1, again))
        writes = (f"product of layer {layer + 1}",) if layer < count else ()
        passes.append(ChunkedPass(f"forward {layer}", (), (product,), writes, columns))
    for layer in range(count, 0, -1):
        product, gradient = f"product of layer {layer}", f"gradient of layer {layer}"
        again = 1 + count + (count - layer)
        rows.append(StoredRows(gradient, widths[layer], SOURCE, again, again + 1))
        reads = (f"gradient of layer {layer + 1}",) if layer < count else ()
        # Rows are read and gradients added for each edge.
        passes.append(
            ChunkedPass(f"backward {layer}", reads, (product,), (), 3 * widths[layer], (gradient,))
        )
    passes.append(ChunkedPass("weights 1", (FEATURES, "gradient of layer 1"), (), (), 0))
    return Schedule(tuple(passes), tuple(rows), max(widths))
