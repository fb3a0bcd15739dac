"""What ranks report that lost another."""

from __future__ import annotations

from typing import Any


def check_named(results: list[Any], victim: int, within_s: float) -> None:
    """Checks that all others named the rank that died, soon.

    Args:
        results: message and seconds of each rank.
        victim: the rank that died.
        within_s: the time that they may have taken.
    """
    for rank, result in enumerate(results):
        if rank != victim:
            message, seconds = result
            assert f"rank {victim} " in message, message
            assert seconds < within_s
