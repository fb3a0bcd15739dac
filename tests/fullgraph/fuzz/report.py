"""How programs end, and what is printed of many."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

EQUAL, NAMED, DIFFERS, UNNAMED = "equal", "named error", "differs", "error without a way out"
LOST, DISAGREE = "ranks hang or die", "ranks end differently"
PRINTED_OF_A_KIND, WORDS = 2, 9


@dataclass(frozen=True)
class Configuration:
    """Where a program runs."""

    ranks: int = 1
    chunks: int = 0
    device: str = "cpu"
    plan: str = ""
    """Of shared data, for programs of loaders; empty for full graphs."""
    graph: str = "pyg"
    """Or "typed": PyG with two node types; or "dgl"."""
    dtype: str = "float64"
    """Or "float32", where programs use autocast, too."""


@dataclass
class Outcome:
    """How a program ended on one rank."""

    kind: str
    line: int = 0
    message: str = ""
    statements: int = 0


@dataclass
class Result:
    """How the program of a seed ended; with its statements if not as on plain tensors."""

    seed: int
    where: Configuration
    outcome: Outcome
    lines: list[str] = field(default_factory=list)
    is_final: bool = True
    """Whether its program is not about to be made shorter."""

    @property
    def signature(self) -> str:
        """The same for findings that look the same: of their message, or last statement."""
        statements = [line for line in self.lines if not line.startswith("check(")]
        is_error = "error" in self.outcome.kind or not statements
        text = self.outcome.message if is_error else statements[-1]
        return f"{self.outcome.kind}: {re.sub('v?[0-9]+', '#', text)[:100]}"

    def __str__(self) -> str:
        program = "\n".join(self.lines)
        message = self.outcome.message.replace("\n", "\n# ")
        differing = {
            f.name: getattr(self.where, f.name)
            for f in fields(Configuration)
            if getattr(self.where, f.name) != f.default
        }
        arguments = "".join(f", {name}={value!r}" for name, value in differing.items())
        return (
            f"# seed {self.seed}: {self.outcome.kind}: {message}\n"
            "from tests.fullgraph.fuzz.replay import replay\n\n"
            f'PROGRAM = r"""\n{program}\n"""\n'
            'if __name__ == "__main__":  # ranks import this file\n'
            f"    replay(PROGRAM, seed={self.seed}{arguments})\n"
        )


class Report:
    """Counts results; prints findings and writes their scripts as they come.

    Args:
        out: a folder for the scripts.
        show: prints.
    """

    def __init__(
        self, out: Path | None = None, show: Callable[[str], None] = lambda text: None
    ) -> None:
        self.out, self.show = out, show
        self.outcomes: Counter[str] = Counter()
        self.named: Counter[str] = Counter()
        self.findings: dict[int, Result] = {}
        self.printed: Counter[str] = Counter()
        self.statements, self.begin = 0, time.monotonic()

    def add(self, result: Result) -> None:
        """Adds the program of a seed; a finding may come again when its program is shorter."""
        kind = result.outcome.kind
        if result.seed not in self.findings:
            self.outcomes[kind] += 1
            self.statements += result.outcome.statements
        if kind == NAMED:
            words = re.sub(r"[0-9]+", "#", result.outcome.message).split()
            self.named[" ".join(words[:WORDS])] += 1
        elif kind != EQUAL:
            self.findings[result.seed] = result
            self._present(result)

    def _present(self, finding: Result) -> None:
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            (self.out / f"seed_{finding.seed}.py").write_text(str(finding))
        if not finding.is_final:
            self.show(f"seed {finding.seed}: {finding.outcome.kind}: {finding.outcome.message}")
            return
        self.printed[finding.signature] += 1
        if self.printed[finding.signature] <= PRINTED_OF_A_KIND:
            self.show(str(finding))

    @property
    def failures(self) -> int:
        """Programs that end neither equal nor with a named error."""
        return len(self.findings)

    @property
    def summary(self) -> str:
        """Counts in a line."""
        seconds = time.monotonic() - self.begin
        total = self.outcomes.total()
        return (
            f"{total} programs, {self.statements} statements, {seconds:.0f} s, "
            f"{total / max(seconds, 1e-9):.1f} a second: {self.outcomes[EQUAL]} equal, "
            f"{self.outcomes[NAMED]} named errors, {self.failures} findings"
        )

    def __str__(self) -> str:
        total = max(1, self.outcomes.total())
        lines = [self.summary]
        lines += [
            f"  {n:7} {100 * n / total:5.1f} %  {kind}" for kind, n in self.outcomes.most_common()
        ]
        lines += ["", "named errors:"]
        lines += [f"  {n:7}  {text}" for text, n in self.named.most_common(40)]
        if self.findings:
            signatures = Counter(finding.signature for finding in self.findings.values())
            lines += ["", "findings:"]
            lines += [f"  {n:7}  {text}" for text, n in signatures.most_common(60)]
        return "\n".join(lines)
