"""Runs one program again, as printed with a finding."""

from __future__ import annotations

import sys

from tests.fullgraph.fuzz.campaign import Campaign
from tests.fullgraph.fuzz.report import EQUAL, Configuration


def replay(
    text: str, seed: int, ranks: int = 1, chunks: int = 0, device: str = "cpu", plan: str = ""
) -> None:
    """Prints how a program ends on a full graph; exit status 1 if not as on plain tensors.

    Args:
        text: statements, one a line.
        seed: of the graph.
        ranks, chunks, device: where it runs; 0 chunks for rows on the device.
        plan: of shared data, for a program of loaders.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    campaign = Campaign([ranks], [chunks], device)
    outcome = campaign.outcome_of(lines, seed, Configuration(ranks, chunks, device, plan))
    campaign.close()
    if outcome is None:
        sys.exit("the program raises on plain tensors")
    if outcome.kind != EQUAL:
        sys.exit(f"{outcome.kind}, at {lines[outcome.line]!r}: {outcome.message}")
    print(EQUAL)
