"""Reads lists of rows: where the lists of several tables begin and end, in common steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


class ListBounds:
    """The bounds of the lists of some rows of several tables, in memory that they have in common.

    Args:
        shapes: of each table, the number of rows and the number of lists in a row.
        device: of the bounds.

    Attributes:
        bounds: of each table, ``[rows, lists + 1]`` int64, to be filled: where the lists of each
            row begin, and the end of the last one.
    """

    def __init__(self, shapes: Sequence[tuple[int, int]], device: torch.device) -> None:
        self._rows = [rows for rows, _ in shapes]
        # By the number of lists in a row, the tables and their memory. A row of zeros before the
        # rows of each table has empty lists, which keep the table apart from the one before.
        self._groups: dict[int, tuple[list[int], Tensor]] = {}
        bounds: dict[int, Tensor] = {}
        for width in dict.fromkeys(width for _, width in shapes):
            tables = [at for at, shape in enumerate(shapes) if shape[1] == width]
            sizes = [size for at in tables for size in (1, self._rows[at])]
            memory = torch.zeros(sum(sizes), width + 1, dtype=torch.int64, device=device)
            self._groups[width] = tables, memory
            bounds.update(zip(tables, torch.split_with_sizes(memory, sizes)[1::2], strict=True))
        self.bounds = [bounds[at] for at in range(len(shapes))]

    def places(self) -> list[tuple[Tensor, Tensor]]:
        """Returns where the lists of each table end, and where their elements are in the store.

        Waits for the device once.

        Returns:
            Of each table, ``[rows * lists + 1]`` from 0, and ``[elements]``.
        """
        if not self._rows:
            return []
        lengths = [(of[:, 1:] - of[:, :-1]).view(-1) for _, of in self._groups.values()]
        ends = [of.cumsum(0) for of in lengths]
        # Where each table begins among its group's elements, and where the last one ends.
        firsts = iter(self._ends_at(ends, self._cuts()))
        places: dict[int, tuple[Tensor, Tensor]] = {}
        for (width, (tables, memory)), length, end in zip(
            self._groups.items(), lengths, ends, strict=True
        ):
            first = [next(firsts) for _ in range(len(tables) + 1)]
            shift = memory[:, :-1].reshape(-1) - end
            shift += length
            at_elements = torch.repeat_interleave(shift, length, output_size=first[-1])
            at_elements += torch.arange(first[-1], device=end.device)
            sizes = [size for at in tables for size in (width - 1, self._rows[at] * width + 1)]
            own_ends = torch._foreach_sub(torch.split_with_sizes(end, sizes)[1::2], first[:-1])
            counts = [last - begin for begin, last in pairwise(first)]
            pairs = zip(own_ends, torch.split_with_sizes(at_elements, counts), strict=True)
            places.update(zip(tables, pairs, strict=True))
        return [places[at] for at in range(len(self._rows))]

    def _cuts(self) -> list[int]:
        """Returns, among the lists of all groups, the last of each row of zeros and of a group."""
        cuts, begin = [], 0
        for width, (tables, _) in self._groups.items():
            for at in tables:
                cuts.append(begin + width - 1)
                begin += (self._rows[at] + 1) * width
            cuts.append(begin - 1)
        return cuts

    @staticmethod
    def _ends_at(ends: list[Tensor], cuts: list[int]) -> list[int]:
        together = ends[0] if len(ends) == 1 else torch.cat(ends)
        result: list[int] = together[torch.tensor(cuts, device=together.device)].tolist()
        return result
