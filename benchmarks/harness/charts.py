"""Charts of the documentation: what they show, and their tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from harness.markdown import table

PEERGRAPH, PEER, FRAMEWORK, FLOOR = "#3b6fb6", "#e08a3c", "#8f8f8f", "#2f9e6e"
LIGHT = "#9dbbe3"
_COLORS = (PEERGRAPH, PEER, FLOOR, "#c44e52", "#8172b3", FRAMEWORK, LIGHT, "#f2c79b")


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
    better: str = ", shorter is better"
    is_lines: bool = False
    from_zero: bool = True

    @staticmethod
    def of_groups(
        title: str, unit: str, groups: Mapping[str, Mapping[str, float | None]], **options: Any
    ) -> Chart:
        """Values by case and by system."""
        names = list(dict.fromkeys(name for values in groups.values() for name in values))
        columns = ([values.get(name) for values in groups.values()] for name in names)
        series = [Series(*each) for each in zip(names, cycle(_COLORS), columns)]
        return Chart(title, unit, list(groups), series, **options)

    @property
    def has_values(self) -> bool:
        return any(value is not None for series in self.series for value in series.values)

    def table(self) -> str:
        columns = [*self.series, *([self.floor] if self.floor else [])]
        rows = zip(self.cases, *([_number(v) for v in c.values] for c in columns), strict=True)
        lines = table([self.unit, *(column.name for column in columns)], rows)
        results = "../../benchmarks/results"
        links = " and ".join(f"[{run}]({results}/{run}/README.md)" for run in self.runs)
        return "\n".join([*lines, f"Recorded in {links}{self.note}.", ""])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
