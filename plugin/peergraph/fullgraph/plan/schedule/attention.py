"""The passes of layers of attention, which the backward pass computes again."""

from __future__ import annotations

from collections.abc import Sequence

from peergraph.fullgraph.plan.schedule.schedule import (
    BEFORE,
    FEATURES,
    SEQUENTIAL,
    SOURCE,
    ChunkedPass,
    Schedule,
    StoredRows,
)

# Rows of the wider end of a pass that the work on a chunk holds at its peak: measured, with
# dropout.
_WORKING_ROWS = 10


class AttentionSchedule:
    """Makes the passes of layers that multiply, then weight their edges.

    Rows of sources and of destinations have an element for each head besides, from which the
    weights of edges are computed.

    Args:
        widths: columns of the input and of each layer's output.
        heads: of attention.
        labelled: share of the nodes that the loss is computed of.
    """

    def __init__(self, widths: Sequence[int], heads: int, labelled: float) -> None:
        self._widths, self._heads, self._labelled = widths, heads, labelled
        self._count = len(widths) - 1
        self._rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, BEFORE, 3 * self._count)]
        self._passes: list[ChunkedPass] = []

    def make(self) -> Schedule:
        """Returns the passes of an epoch."""
        self._add_product()
        for layer in range(1, self._count + 1):
            self._add_forward(layer)
        for layer in range(self._count, 0, -1):
            gradients = self._add_edge_gradients(layer)
            self._add_weight_gradients(layer, gradients)
        return Schedule(tuple(self._passes), tuple(self._rows))

    def _store(self, name: str, columns: int, role: str, first: int, last: int) -> str:
        """Adds rows that a pass leaves, and returns their name."""
        self._rows.append(StoredRows(name, columns, role, first, last))
        return name

    def _add_product(self) -> None:
        """Adds the pass of the first layer's product."""
        self._passes.append(
            ChunkedPass(
                "product 1",
                (FEATURES,),
                (),
                self._store_product(1, 0),
                working=self._working(0, 1),
            )
        )

    def _add_forward(self, layer: int) -> None:
        """Adds the pass over a layer's edges. It also computes the next layer's product."""
        last, columns = self._is_last(layer), self._widths[layer]
        writes: tuple[str, ...] = ()
        if not last:
            until = self._edge_gradients_at(layer + 1) + 1
            out = self._store(f"output of layer {layer}", columns, SEQUENTIAL, layer, until)
            writes = (out, *self._store_product(layer + 1, layer))
        self._passes.append(
            ChunkedPass(
                f"forward {layer}",
                () if last else (f"destinations of layer {layer}",),
                (f"product of layer {layer}", f"sources of layer {layer}"),
                writes,
                share=self._labelled if last else 1.0,
                working=self._working(layer, layer if last else layer + 1),
            )
        )

    def _add_edge_gradients(self, layer: int) -> tuple[str, ...]:
        """Adds the pass that computes a layer's edges again. Returns the names of its gradients."""
        at, last, columns = len(self._passes), self._is_last(layer), self._widths[layer]
        of_sources = (
            self._store(f"product gradient of layer {layer}", columns, SOURCE, at, at + 1),
            self._store(f"sources gradient of layer {layer}", self._heads, SOURCE, at, at + 1),
        )
        of_destinations: tuple[str, ...] = ()
        if not last:
            name = f"destinations gradient of layer {layer}"
            of_destinations = (self._store(name, self._heads, SEQUENTIAL, at, at + 1),)
        self._passes.append(
            ChunkedPass(
                f"backward {layer}",
                () if last else (f"gradient of layer {layer}", f"destinations of layer {layer}"),
                (f"product of layer {layer}", f"sources of layer {layer}"),
                of_destinations,
                of_sources,
                share=self._labelled if last else 1.0,
                working=self._working(layer),
            )
        )
        return of_sources + of_destinations

    def _add_weight_gradients(self, layer: int, gradients: tuple[str, ...]) -> None:
        """Adds the pass of the gradients of a layer's weights and of its input."""
        at = len(self._passes)
        writes: tuple[str, ...] = ()
        if layer > 1:
            name, columns = f"gradient of layer {layer - 1}", self._widths[layer - 1]
            writes = (self._store(name, columns, SEQUENTIAL, at, at + 1),)
        self._passes.append(
            ChunkedPass(
                f"weights {layer}",
                (*gradients, f"output of layer {layer - 1}" if layer > 1 else FEATURES),
                (),
                writes,
                working=self._working(layer - 1, layer),
            )
        )

    def _store_product(self, layer: int, at: int) -> tuple[str, str, str]:
        """Adds the rows that the product of a layer leaves, and returns their names."""
        columns, last = self._widths[layer], self._edge_gradients_at(layer)
        return (
            self._store(f"product of layer {layer}", columns, SOURCE, at, last),
            self._store(f"sources of layer {layer}", self._heads, SOURCE, at, last),
            self._store(f"destinations of layer {layer}", self._heads, SEQUENTIAL, at, last),
        )

    def _working(self, *ends: int) -> int:
        """Elements that the work of a pass between layers holds for each destination."""
        return _WORKING_ROWS * max(self._widths[layer] for layer in ends)

    def _is_last(self, layer: int) -> bool:
        return layer == self._count

    def _edge_gradients_at(self, layer: int) -> int:
        """Returns the number of the pass that computes a layer's edges again."""
        return 1 + self._count + 2 * (self._count - layer)
