"""Systems that take turns, call by call, so that other work on the machine disturbs all alike."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.records import Record, append_records, render

_WARMUP = 2


@dataclass
class Turns:
    """Milliseconds of the timed calls of a system, by the clock and of all threads of the process,
    and what the calls returned.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    @property
    def least(self) -> float:
        return min(self.wall)

    @property
    def median(self) -> float:
        return median(self.wall)

    @property
    def least_cpu(self) -> float:
        """What others disturb least."""
        return min(self.cpu)

    @property
    def median_cpu(self) -> float:
        return median(self.cpu)


def cpu_seconds() -> float:
    """Of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_turns(
    systems: Mapping[Any, Callable[[int], Any]], rounds: int, warmup: int = _WARMUP
) -> dict[Any, Turns]:
    """Calls each system with the number of the round."""
    turns: dict[Any, Turns] = {name: Turns() for name in systems}
    for number in range(warmup + rounds):
        for name, call in systems.items():
            cpu_before, before = cpu_seconds(), time.perf_counter()
            result = call(number)
            wall, cpu = time.perf_counter() - before, cpu_seconds() - cpu_before
            if number >= warmup:
                turns[name].wall.append(1e3 * wall)
                turns[name].cpu.append(1e3 * cpu)
                turns[name].results.append(result)
    return turns


def parser(description: str) -> argparse.ArgumentParser:
    """The options of all scripts whose systems take turns."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    result.add_argument("--rounds", type=int, default=20, help="batches of each system")
    result.add_argument("--out", default=None, help="file that JSON lines are appended to")
    return result


def report(bench: str, records: Iterable[Record], columns: Sequence[str], out: str | None) -> None:
    """Shows each record as it is made, then a table of all; appends them to a file."""
    rows = []
    for record in records:
        print(json.dumps(record), file=sys.stderr, flush=True)
        rows.append(record)
    print(render(bench, rows, list(columns)))
    append_records(out, rows)
