"""The passes of a gated graph network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peergraph.fullgraph.plan.schedule.schedule import (
    BEFORE,
    FEATURES,
    SEQUENTIAL,
    SOURCE,
    ChunkedPass,
    Schedule,
    StoredRows,
)

# Rows of a layer's output that the work on a chunk with gated recurrent units holds.
_GATED_ROWS = 14


def schedule_gates(widths: Sequence[int], labelled: float) -> Schedule:
    """Returns the passes of a gated graph network, of linear maps, sums of products, and gates.

    Inputs of the gates are computed again from the features and from the sums of all layers before,
    so each of these sums gets parts of its gradient in several passes, which are added in a pass of
    their own.
    """
    count = len(widths) - 1
    total = 3 * count
    rows = [StoredRows(FEATURES, widths[0], SEQUENTIAL, BEFORE, total - 1)]
    passes: list[ChunkedPass] = []

    def add(name: str, reads: list[str], sources: list[str], writes: list[str], layer: int,
            **options: Any) -> None:  # fmt: skip
        passes.append(
            ChunkedPass(
                name,
                tuple(reads),
                tuple(sources),
                tuple(writes),
                working=_GATED_ROWS * widths[layer],
                **options,
            )
        )

    def before(layer: int) -> list[str]:
        """What the input of a layer's gates is computed from."""
        return [f"sum of layer {number}" for number in range(layer - 1, 0, -1)] + [FEATURES]

    def product(layer: int, at: int) -> str:
        name = f"product of layer {layer}"
        rows.append(StoredRows(name, widths[layer], SOURCE, at, at + 1))
        return name

    add("product 1", [FEATURES], [], [product(1, 0)], 1)
    for layer in range(1, count):
        summed = f"sum of layer {layer}"
        last = count + 2 * (count - layer) - 1  # the backward pass of the next layer
        rows.append(StoredRows(summed, widths[layer], SEQUENTIAL, layer, last))
        writes = [product(layer + 1, layer), summed]
        add(f"forward {layer}", before(layer), [f"product of layer {layer}"], writes, layer)
    add(f"forward {count}", before(count), [f"product of layer {count}"], [], count, share=labelled)
    for layer in range(count, 0, -1):
        gradient, at = f"gradient of layer {layer}", len(passes)
        if layer == count:
            rows.append(StoredRows(gradient, widths[layer], SOURCE, at, at, share=labelled))
        parts = []
        for number in range(layer - 1, 0, -1):
            parts.append(f"part {count - layer + 1} of the gradient of layer {number}")
            until = count + 2 * (count - number)
            rows.append(StoredRows(parts[-1], widths[number], SEQUENTIAL, at, until))
        add(f"backward {layer}", before(layer), [gradient], parts, layer)
        if layer > 1:
            number = layer - 1
            partial_gradients = [f"part {part} of the gradient of layer {number}"
                     for part in range(1, count - number + 1)]  # fmt: skip
            whole = f"gradient of layer {number}"
            rows.append(StoredRows(whole, widths[number], SOURCE, at + 1, at + 2))
            add(f"sum of gradients {number}", partial_gradients, [], [whole], number)
    return Schedule(tuple(passes), tuple(rows))
