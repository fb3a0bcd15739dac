"""Rows that each way of exchange moves, and the choice between the ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from peergraph.fullgraph.exchange.block_stages import Mode

# Bytes per second of an H200: from a peer by copy engine, and of its own memory.
_LINK_RATE = 420e9
_MEMORY_RATE = 4.6e12


class ExchangeCost(NamedTuple):
    """What one exchange of rows costs the rank that moves most."""

    rows: int
    """Rows that the rank receives or sends, whichever are more."""
    seconds: float
    """Time of the copies and of packing rows."""
    buffer_rows: int
    """Rows of all buffers that a rank holds beside the sources and the result."""


def exchange_cost(
    mode: Mode,
    needed: Sequence[Sequence[int]],
    counts: Sequence[int],
    row_bytes: int,
    *,
    link_rate: float = _LINK_RATE,
    memory_rate: float = _MEMORY_RATE,
) -> ExchangeCost:
    """Returns the cost of an exchange by :class:`BlockStages`.

    Args:
        mode: ``halo``: distinct rows, which are packed; ``blocks``: all rows of each rank.
        needed: ``needed[r][q]`` distinct rows of rank q that rank r needs; 0 for r = q.
        counts: rows by rank.
        row_bytes: bytes of a row.
        link_rate: bytes per second that a rank receives, while it sends as many.
        memory_rate: bytes per second that a rank reads and writes in its own memory.
    """
    ranks = range(len(counts))
    moved = [
        [counts[q] if needed[r][q] and mode == "blocks" else needed[r][q] for q in ranks]
        for r in ranks
    ]
    received = [sum(row) for row in moved]
    sent = [sum(row[q] for row in moved) for q in ranks]
    rows = max((*received, *sent), default=0)
    seconds = rows * row_bytes / link_rate
    largest = [sum(sorted(row, reverse=True)[:2]) for row in moved]
    if mode == "halo":
        seconds += 2 * max(sent, default=0) * row_bytes / memory_rate
        packed = [sum(sorted((row[q] for row in moved), reverse=True)[:2]) for q in ranks]
        largest = [read + out for read, out in zip(largest, packed, strict=True)]
    return ExchangeCost(rows, seconds, max(largest, default=0))


def choose_mode(
    needed: Sequence[Sequence[int]],
    counts: Sequence[int],
    *,
    link_rate: float = _LINK_RATE,
    memory_rate: float = _MEMORY_RATE,
) -> Mode:
    """Returns the mode whose exchange is faster, by counted rows (never by edge cut).

    Equal on all ranks, as the arguments are. The width of rows does not change the choice. Random
    numbering of a dense graph needs nearly all rows of all ranks, so whole blocks travel without
    packing; communities need few rows.

    Args:
        needed, counts, link_rate, memory_rate: as for :func:`exchange_cost`.
    """
    modes: tuple[Mode, Mode] = ("blocks", "halo")
    return min(
        modes,
        key=lambda mode: (
            exchange_cost(
                mode, needed, counts, 1, link_rate=link_rate, memory_rate=memory_rate
            ).seconds
        ),
    )
