"""Softmax of scores over the edges of several relations to the same destinations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.aggregate import Structure


def joint_softmax(structures: Sequence[Structure], scores: Sequence[Tensor]) -> list[Tensor]:
    """Returns the softmax at each destination over its edges of all relations. Differentiable.

    Args:
        structures: the relations, all to the same destinations.
        scores: of each relation, [edges, *heads], with the rows of its edges.

    Returns:
        [edges, *heads] by relation.
    """
    relations = list(zip(structures, scores, strict=True))
    with torch.no_grad():
        highest = _largest([_maxima(structure, rows) for structure, rows in relations])
    powers = [
        (rows - structure.sddmm("copy", highest, lhs_target="v")).exp()
        for structure, rows in relations
    ]
    pairs = list(zip(structures, powers, strict=True))
    total = pairs[0][0].spmm("copy_e", "sum", e=powers[0])
    for structure, rows in pairs[1:]:
        total = total + structure.spmm("copy_e", "sum", e=rows)
    return [rows / structure.sddmm("copy", total, lhs_target="v") for structure, rows in pairs]


def _maxima(structure: Structure, scores: Tensor) -> Tensor:
    """Returns the highest score of each destination, minus infinity where it has no edges."""
    maxima = structure.spmm("copy_e", "max", e=scores)
    empty = structure.in_degrees() == 0
    return maxima.masked_fill(empty.reshape(-1, *[1] * (maxima.dim() - 1)), -torch.inf)


def _largest(maxima: Sequence[Tensor]) -> Tensor:
    largest = maxima[0]
    for other in maxima[1:]:
        largest = torch.maximum(largest, other)
    return largest
