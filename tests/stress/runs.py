"""Runs scenarios and judges them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from peergraph.testing import run_ranks
from tests.stress import work
from tests.stress.batches import run_batches
from tests.stress.leftovers import Watch
from tests.stress.scenarios import ENDS, Scenario

# For a scenario; much longer than the group's patience, so that whoever waits longer is found out.
DEADLINE_S = 100.0


@dataclass
class Row:
    """What came of a scenario, a line of the table."""

    name: str
    ranks: int
    seconds: float = 0.0
    raised: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        outcome = "; ".join(self.wrong) or "as expected"
        raised = "; ".join(sorted(set(self.raised))) or "nothing"
        cells = (self.name, self.ranks, f"{self.seconds:.1f}", raised, outcome)
        return "| " + " | ".join(str(c).replace("|", "/").replace("\n", " ") for c in cells) + " |"


HEADER = "| scenario | ranks | s | raised | outcome |\n| --- | --- | --- | --- | --- |"


def run_scenario(scenario: Scenario, watch: Watch) -> Row:
    """Runs it on ranks of its own."""
    row = Row(str(scenario), scenario.world_size)
    task = {"disagree": work.disagree, "full disk": work.fill_disk}.get(
        scenario.kind, work.run_stages
    )
    may_die = [scenario.victim] if scenario.kind in ENDS else []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peergraph-stress-") as folder:
        try:
            outcomes = run_ranks(
                task,
                scenario.world_size,
                *(scenario, folder),
                timeout_s=DEADLINE_S,
                device=scenario.device,
                may_die=may_die,
            )
            row.wrong += judge(scenario, outcomes)
            row.raised = [_short(o) for o in outcomes if o is not None and o.error]
        except (RuntimeError, TimeoutError) as error:
            row.wrong.append(str(error).strip().splitlines()[-1])
    row.seconds = time.monotonic() - start
    row.wrong += watch.leftovers()
    return row


def judge(scenario: Scenario, outcomes: Sequence[work.Outcome | None]) -> list[str]:
    """What the ranks should have done otherwise."""
    failures = []
    for rank, outcome in enumerate(outcomes):
        wrong = ""
        if outcome is None:  # the victim, which has ended
            continue
        if scenario.kind == "pause":
            wrong = outcome.error and f"raised {_short(outcome)}"
        elif scenario.kind == "full disk":
            # Whose file it is raises OSError; the others may say that a rank failed.
            wrong = "" if outcome.error else outcome.message
        elif scenario.kind == "disagree":
            wrong = "" if outcome.error else f"no error, {outcome.message}"
            if "did not join" in outcome.message:
                wrong = "waited for ranks that are in another collective"
        elif rank == scenario.victim:  # it was frozen, and the others have given up
            wrong = "" if outcome.error else "went on alone"
        elif outcome.error != "PeerLostError":
            wrong = f"PeerLostError was expected, not {_short(outcome)}"
        elif f"rank {scenario.victim}" not in outcome.message:
            wrong = f"the message names another rank: {outcome.message}"
        if wrong:
            failures.append(f"rank {rank} of {scenario.world_size}: {wrong}")
    # A build that is told of too little memory may find that out before it meets the full disk.
    expected = {"save": ("OSError",), "build": ("OSError", "MemoryError")}.get(scenario.stage, ())
    if scenario.kind == "full disk" and not any(o and o.error in expected for o in outcomes):
        failures.append(f"no rank raised {' or '.join(expected)}")
    return failures


def run_long(count: int, ranks: int, seed: int, device: str, watch: Watch) -> Row:
    """Many batches on each of several ranks, nothing goes wrong."""
    row = Row(f"{count} batches", ranks)
    start = time.monotonic()
    try:
        seconds = 60 + count * 0.5
        faults = run_ranks(
            run_batches, ranks, count, seed, device, timeout_s=seconds, device=device
        )
        row.wrong = [wrong for wrong in faults if wrong]
    except (RuntimeError, TimeoutError) as error:
        row.wrong = [str(error).strip().splitlines()[-1]]
    row.seconds = time.monotonic() - start
    row.wrong += watch.leftovers()
    return row


def _short(outcome: work.Outcome) -> str:
    if not outcome.error:
        return "no error"
    message = outcome.message.strip().splitlines()[:1] or [""]
    return f"{outcome.error} in {outcome.stage}: {message[0][:90]}"
