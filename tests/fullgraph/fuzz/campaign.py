"""Runs many programs, counts how they end, and shrinks those that differ."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from tests.fullgraph.fuzz.generator import make_program
from tests.fullgraph.fuzz.loaders import make_loader_program, run_loader_program
from tests.fullgraph.fuzz.outcomes import EQUAL, NAMED, Outcome, observe, run_program
from tests.fullgraph.fuzz.shrink import shrink
from tests.fullgraph.fuzz.workers import Configuration, Workers

SHRUNK, PRINTED_OF_A_KIND = 40, 2


@dataclass
class Finding:
    """A program that does not end as on plain tensors."""

    seed: int
    where: Configuration
    outcome: Outcome
    lines: list[str]

    @property
    def signature(self) -> str:
        """The same for findings that look the same: of their message, or last statement."""
        statements = [line for line in self.lines if not line.startswith("check(")]
        is_error = "error" in self.outcome.kind or not statements
        text = self.outcome.message if is_error else statements[-1]
        return f"{self.outcome.kind}: {re.sub('v?[0-9]+', '#', text)[:100]}"

    def __str__(self) -> str:
        program = "\n".join(self.lines)
        return (
            f"# seed {self.seed}: {self.outcome.kind}: {self.outcome.message}\n"
            "from tests.fullgraph.fuzz.replay import replay\n\n"
            f'replay(\n    r"""\n{program}\n""",\n    seed={self.seed}, ranks={self.where.ranks}, '
            f'chunks={self.where.chunks}, device="{self.where.device}", '
            f'plan="{self.where.plan}",\n)\n'
        )


@dataclass
class Report:
    """What came of programs."""

    outcomes: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    signatures: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    statements: int = 0
    seconds: float = 0.0

    def add(self, other: Report) -> None:
        """Adds the programs of another report."""
        for name in ("outcomes", "named", "signatures"):
            getattr(self, name).update(getattr(other, name))
        self.findings += other.findings
        self.statements += other.statements
        self.seconds = max(self.seconds, other.seconds)

    @property
    def failures(self) -> int:
        """Programs that end neither equal nor with a named error."""
        return sum(n for kind, n in self.outcomes.items() if kind not in (EQUAL, NAMED))

    def __str__(self) -> str:
        total = self.outcomes.total()
        lines = [f"{total} programs, {self.statements} statements, {self.seconds:.0f} s"]
        lines += [
            f"  {n:7} {100 * n / total:5.1f} %  {kind}" for kind, n in self.outcomes.most_common()
        ]
        lines += ["", "named errors:"]
        lines += [f"  {n:7}  {text}" for text, n in self.named.most_common(25)]
        if self.signatures:
            lines += ["", "findings:"]
            lines += [f"  {n:7}  {text}" for text, n in self.signatures.most_common(60)]
        return "\n".join(lines)


class Campaign:
    """Runs the programs of some seeds.

    Args:
        ranks, chunks: which numbers of ranks, and of chunks (0: rows on the device), are drawn
            from for each program.
        device: "cpu" or "cuda".
        deadline_s: of a program.
        loaders: the share of programs that draw batches from shared data.
    """

    def __init__(
        self,
        ranks: list[int],
        chunks: list[int],
        device: str = "cpu",
        deadline_s: float = 60,
        loaders: float = 0.0,
    ) -> None:
        self.chunks, self.device, self.loaders = chunks, device, loaders
        self.workers = {n: Workers(n, device, deadline_s) for n in ranks}

    def run(self, first: int, count: int, step: int = 1, seconds: float = 1e9) -> Report:
        """Runs the programs of seeds `first`, `first + step`, ... until the time is over."""
        begin, report = time.monotonic(), Report()
        for seed in range(first, first + count * step, step):
            if time.monotonic() - begin > seconds:
                break
            self.run_seed(seed, report)
        report.seconds = time.monotonic() - begin
        return report

    def run_seed(self, seed: int, report: Report) -> None:
        """Runs the program of a seed and adds how it ended."""
        draw = np.random.default_rng([seed, 1])
        ranks, chunks = int(draw.choice(list(self.workers))), int(draw.choice(self.chunks))
        if draw.random() < self.loaders:
            where = Configuration(ranks, 0, self.device, str(draw.choice(["auto", "host"])))
            lines = make_loader_program(seed)
        else:
            where = Configuration(ranks, chunks, self.device)
            lines = make_program(seed, chunks > 0)
            if self.device == "cuda":  # a wrong id ends a process that uses a GPU
                lines = [line for line in lines if not line.startswith("with raises")]
        outcome = self.outcome_of(lines, seed, where)
        if outcome is None:  # with other random numbers than the generator's, a statement raises
            return
        report.outcomes[outcome.kind] += 1
        report.statements += len(lines)
        if outcome.kind == NAMED:
            report.named[_message_kind(outcome.message)] += 1
        elif outcome.kind != EQUAL:
            finding = Finding(seed, where, outcome, lines)
            # Each attempt to shrink a program that hangs takes the deadline, and new ranks.
            if report.failures <= SHRUNK and not finding.outcome.kind.startswith("ranks"):
                finding = self.shrink(finding)
            report.signatures[finding.signature] += 1
            if report.signatures[finding.signature] <= PRINTED_OF_A_KIND:
                report.findings.append(finding)
                print(finding, flush=True)

    def outcome_of(self, lines: list[str], seed: int, where: Configuration) -> Outcome | None:
        """How a program ends; None if a statement raises on plain tensors."""
        workers = self.workers[where.ranks]
        if where.plan:
            return workers.run(run_loader_program, lines, seed, where.plan, where.device)
        expected = observe(lines, seed)
        if expected is None:
            return None
        return workers.run(run_program, lines, seed, expected, where.chunks, where.device)

    def shrink(self, finding: Finding) -> Finding:
        """The finding with a short program, on as few ranks and chunks as show it."""

        def fails(lines: list[str], where: Configuration) -> bool:
            outcome = self.outcome_of(lines, finding.seed, where)
            is_same = outcome is not None and outcome.kind == finding.outcome.kind
            if is_same and "error" in finding.outcome.kind:
                assert outcome is not None
                is_same = outcome.message[:30] == finding.outcome.message[:30]
            return is_same

        where = finding.where
        for ranks, chunks in ((1, 0), (where.ranks, 0), (1, where.chunks)):
            simpler = replace(where, ranks=ranks, chunks=chunks)
            if ranks in self.workers and simpler != where and fails(finding.lines, simpler):
                where = simpler
                break
        lines = shrink(finding.lines, lambda lines: fails(lines, where))
        outcome = self.outcome_of(lines, finding.seed, where) or finding.outcome
        return Finding(finding.seed, where, outcome, lines)

    def close(self) -> None:
        """Ends the ranks."""
        for workers in self.workers.values():
            workers.close()


def _message_kind(message: str) -> str:
    """The beginning of a message, without numbers."""
    return re.sub(r"[0-9]+", "#", message)[:110]
