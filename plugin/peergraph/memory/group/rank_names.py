"""The names of ranks in errors."""

from __future__ import annotations

from collections.abc import Sequence


def name_ranks(ranks: Sequence[int]) -> str:
    """Formats ranks, as in "rank 1" and "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class RankNames:
    """Names the ranks of a group by their ranks in torch.distributed, and by their machine where
    there are several.
    """

    def __init__(self, ranks: Sequence[int], machine: str | None = None) -> None:
        """
        Args:
            ranks: the rank in torch.distributed of each rank of the group.
            machine: the name of the group's machine; None: it is the only machine.
        """
        self._ranks = list(ranks)
        self._suffix = "" if machine is None else f" of {machine}"

    def __call__(self, ranks: Sequence[int]) -> str:
        """Names ranks of the group, as in "rank 1", or "ranks 4, 5 of machine 1
        (node-b)".
        """
        return name_ranks([self._ranks[r] for r in ranks]) + self._suffix
