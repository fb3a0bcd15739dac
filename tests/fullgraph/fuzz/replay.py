"""Runs one program again, as printed with a finding."""

from __future__ import annotations

import sys
from typing import Any

from tests.fullgraph.fuzz.campaign import Campaign
from tests.fullgraph.fuzz.report import EQUAL, Configuration


def replay(text: str, seed: int, **where: Any) -> None:
    """Prints how a program ends on a full graph; exit status 1 if not as on plain tensors.

    Args:
        text: statements, one a line.
        seed: of the graph.
        where: fields of :class:`Configuration`.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    place = Configuration(**where)
    campaign = Campaign([place.ranks], [place.chunks], place.device)
    outcome = campaign.outcome_of(lines, seed, place)
    campaign.close()
    if outcome is None:
        sys.exit("the program raises on plain tensors")
    if outcome.kind != EQUAL:
        sys.exit(f"{outcome.kind}, at {lines[outcome.line]!r}: {outcome.message}")
    print(EQUAL)
