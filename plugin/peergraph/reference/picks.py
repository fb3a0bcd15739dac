"""The specification of uniform draws without replacement."""

from __future__ import annotations

from peergraph.reference.philox import random_below


def picks(degree: int, fanout: int, seed: int, stream: int, position: int) -> list[int]:
    """Returns the positions of the neighbours of a target: all in order, or drawn without
    replacement by swapping each drawn one with the last remaining one (WholeGraph's Algorithm 1
    computes the same in parallel).
    """
    if fanout < 0 or degree <= fanout:
        return list(range(degree))
    elements = list(range(degree))
    chosen = []
    for draw in range(fanout):
        r = random_below(degree - draw, seed, stream, position, draw)
        chosen.append(elements[r])
        elements[r] = elements[degree - 1 - draw]
    return chosen
