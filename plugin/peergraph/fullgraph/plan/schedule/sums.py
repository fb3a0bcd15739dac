"""The passes of a GCN, GraphSAGE or GIN, which keep the sum of the input for all epochs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from peergraph.fullgraph.plan.layer_cost import summed_widths
from peergraph.fullgraph.plan.schedule.schedule import (
    BEFORE,
    FEATURES,
    SEQUENTIAL,
    SOURCE,
    ChunkedPass,
    Schedule,
    StoredRows,
)

# Rows of a layer's output, and of its sum or the gradient of that, that the work on a chunk holds
# at its peak: measured, with dropout.
_FORWARD_ROWS, _BACKWARD_ROWS, _SUMMED_ROWS = 4, 6, 4


class SumSchedule:
    """Makes the passes of layers that sum.

    The product of a layer is in the pass before its sum, or in its own pass behind the sum; GIN has
    it behind. In the backward pass, a pass reads the gradients of the sums of layer l, computes
    rows of layer l - 1 again from the sums of that layer, and writes the gradients of those.
    GraphSAGE and GIN read the features beside their sum. GraphSAGE multiplies a node's own row by a
    matrix of its own: it needs that row again, and has a gradient of it.

    Args:
        widths: columns of the input and of each layer's output.
        labelled: share of the nodes that the loss is computed of.
        layer_type: "gcn", "sage" or "gin".
        summed_again: layers, counted from 0, with sums that are not stored: the backward pass
            computes them again from rows that stay until then. Neither the first nor the last.
    """

    def __init__(
        self,
        widths: Sequence[int],
        labelled: float,
        layer_type: str,
        summed_again: Collection[int] = (),
    ) -> None:
        self._widths, self._labelled = widths, labelled
        self._layers = _summed_layers(widths, layer_type)
        self._count = len(self._layers)
        self._again = summed_again
        self._is_sage = layer_type == "sage"
        self._own_rows = [FEATURES] if layer_type in ("sage", "gin") else []
        # Labelled nodes' own rows are computed again.
        self._computes_labelled = self._is_sage and self._count > 1 and not self._layers[-1][1]
        # A pass adds gradients of labelled nodes' own rows to those of the others.
        self._adds_labelled = self._computes_labelled and self._count > 2
        self._total = 2 * self._count - 1 + self._adds_labelled
        self._rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, BEFORE, self._total - 1)]
        self._passes: list[ChunkedPass] = []

    def make(self) -> Schedule:
        """Returns the passes of an epoch."""
        for layer in range(self._count):
            self._add_forward(layer)
        for layer in range(self._count - 1, 0, -1):
            self._add_backward(layer)
            if layer > 1 and self._is_labelled(layer) and self._adds_labelled:
                self._add_labelled_gradients(layer)
        return Schedule(tuple(self._passes), tuple(self._rows))

    def _store(
        self, name: str, columns: int, role: str, first: int, last: int, share: float = 1.0
    ) -> str:
        """Adds rows that a pass leaves, and returns their name."""
        self._rows.append(StoredRows(name, columns, role, first, last, share))
        return name

    def _add_forward(self, layer: int) -> None:
        columns = self._layers[layer][0]
        reads, sources = self._forward_reads(layer)
        self._passes.append(
            ChunkedPass(
                f"forward {layer + 1}",
                tuple(reads),
                tuple(sources),
                tuple(self._forward_writes(layer)),
                own=tuple(sources),
                share=self._labelled if self._is_labelled(layer) else 1.0,
                working=_FORWARD_ROWS * self._widths[layer + 1] + _SUMMED_ROWS * columns,
            )
        )

    def _forward_reads(self, layer: int) -> tuple[list[str], list[str]]:
        """Rows that a layer reads in order, and those that it sums."""
        if layer == 0:
            columns = self._layers[0][0]
            summed = self._store(_sum_name(0), columns, SEQUENTIAL, BEFORE, self._total - 1)
            return [summed, *self._own_rows], []
        reads, sources = [], [self._output(layer)]
        if self._is_labelled(layer) and self._computes_labelled:
            below, again = self._read_sum(layer - 1)
            reads = [*below, self._output(layer - 1) if layer > 1 else FEATURES]
            sources += again
        return reads, sources

    def _read_sum(self, layer: int) -> tuple[list[str], list[str]]:
        """A layer's sum, if it is stored, or else the rows that are summed again."""
        again = layer in self._again
        return [] if again else [_sum_name(layer)], [self._output(layer)] if again else []

    def _forward_writes(self, layer: int) -> list[str]:
        """Rows that a layer leaves: its sum, and what the next layer sums."""
        if self._is_labelled(layer):
            return []
        writes = []
        if layer > 0 and layer not in self._again:
            columns = self._layers[layer][0]
            last = self._backward(layer + 1)
            writes.append(self._store(_sum_name(layer), columns, SEQUENTIAL, layer, last))
        is_own_row = self._is_sage and layer + 2 < self._count
        last = self._backward(layer + 2) if is_own_row else layer + 1
        if layer + 1 in self._again:
            last = max(last, self._backward(layer + 2))
        columns = self._layers[layer + 1][0]
        writes.append(self._store(self._output(layer + 1), columns, SOURCE, layer, last))
        return writes

    def _add_backward(self, layer: int) -> None:
        at, is_last = len(self._passes), self._is_labelled(layer)
        columns = self._layers[layer][0]
        gradient = _gradient_name(layer)
        if is_last:
            self._store(gradient, columns, SOURCE, at, at, self._labelled)
        writes: list[str] = []
        reads, again = self._read_sum(layer - 1)
        if layer == 1:
            reads += self._own_rows
        if self._is_sage:
            reads += self._read_own_rows(layer)
        if self._is_sage and layer > 1:
            writes.append(self._store_own_gradient(layer - 1, at))
        if layer > 1:
            below = _gradient_name(layer - 1)
            if is_last and self._adds_labelled:
                below = _labelled_name(layer - 1)
            writes.append(self._store(below, self._layers[layer - 1][0], SOURCE, at, at + 1))
        self._passes.append(
            ChunkedPass(
                f"backward {layer + 1}",
                tuple(reads),
                (gradient, *again),
                tuple(writes),
                # Gradients of labelled rows are on the device.
                own=() if self._is_sage else (*(() if is_last else (gradient,)), *again),
                working=_BACKWARD_ROWS * self._widths[layer] + _SUMMED_ROWS * columns,
            )
        )

    def _read_own_rows(self, layer: int) -> list[str]:
        """Of GraphSAGE: gradients of a layer's own rows, and own rows of the layer below."""
        gradients = [] if self._is_labelled(layer) else [_own_gradient_name(layer)]
        return gradients + ([self._output(layer - 1)] if layer > 1 else [])

    def _store_own_gradient(self, layer: int, at: int) -> str:
        """Of GraphSAGE: adds the gradients of a layer's own rows, and returns their name."""
        name, until = _own_gradient_name(layer), self._backward(layer)
        return self._store(name, self._widths[layer], SEQUENTIAL, at, until)

    def _add_labelled_gradients(self, layer: int) -> None:
        """Adds the pass that sums gradients of labelled nodes' own rows."""
        at, columns = len(self._passes), self._layers[layer - 1][0]
        gradient = self._store(_gradient_name(layer - 1), columns, SOURCE, at, at + 1)
        self._passes.append(
            ChunkedPass(
                f"labelled {layer}",
                (_labelled_name(layer - 1),),
                (),
                (gradient,),
                working=3 * columns,
            )
        )

    def _is_labelled(self, layer: int) -> bool:
        """Whether rows of a layer are computed for labelled nodes only."""
        return layer == self._count - 1

    def _backward(self, layer: int) -> int:
        """The number of the pass that reads the gradient of a layer's sums."""
        return self._total - layer - (self._adds_labelled and self._is_labelled(layer))

    def _output(self, layer: int) -> str:
        """The name of the rows that a layer sums."""
        if self._layers[layer][1]:
            return f"output of layer {layer}"
        return f"product of layer {layer + 1}"


def _summed_layers(widths: Sequence[int], layer_type: str) -> list[tuple[int, bool]]:
    """Columns that each layer sums, and whether it sums before its product."""
    if layer_type == "gin":
        return [(before, True) for before in widths[:-1]]
    layers = summed_widths(widths)
    if layer_type == "sage":  # It multiplies first only where that makes rows narrower.
        return [
            (columns, sums_first or columns == before)
            for (columns, sums_first), before in zip(layers, widths[:-1], strict=True)
        ]
    return layers


def _sum_name(layer: int) -> str:
    return f"sum of layer {layer + 1}"


def _gradient_name(layer: int) -> str:
    return f"gradient of layer {layer + 1}"


def _own_gradient_name(layer: int) -> str:
    return f"gradient of own rows of layer {layer + 1}"


def _labelled_name(layer: int) -> str:
    return f"{_gradient_name(layer)}, but labelled"
