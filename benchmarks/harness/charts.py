"""Charts of the documentation: what they show, and their tables."""

from __future__ import annotations

from dataclasses import dataclass

PEERGRAPH, PEER, FRAMEWORK, FLOOR = "#3b6fb6", "#e08a3c", "#8f8f8f", "#2f9e6e"
LIGHT = "#9dbbe3"


@dataclass(frozen=True)
class Series:
    """One system: a value for each case, None where it was not measured or did not run."""

    name: str
    color: str
    values: list[float | None]


@dataclass(frozen=True)
class Chart:
    """Cases and what each system did in them, in one unit."""

    title: str
    unit: str
    cases: list[str]
    series: list[Series]
    floor: Series | None = None
    runs: tuple[str, ...] = ()
    note: str = ""

    def table(self) -> str:
        columns = [*self.series, *([self.floor] if self.floor else [])]
        head = f"| {self.unit} | " + " | ".join(column.name for column in columns) + " |"
        lines = [head, "| --- |" + " ---: |" * len(columns)]
        for i, case in enumerate(self.cases):
            cells = (_number(column.values[i]) for column in columns)
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
        results = "../../benchmarks/results"
        links = " and ".join(f"[{run}]({results}/{run}/README.md)" for run in self.runs)
        return "\n".join([*lines, "", f"Recorded in {links}{self.note}.", ""])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
