"""Runs many programs, and shrinks those that do not end as on plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from tests.fullgraph.fuzz.generator import make_program
from tests.fullgraph.fuzz.loaders import make_loader_program, run_loader_program
from tests.fullgraph.fuzz.outcomes import (
    first_difference,
    observe,
    run_program,
    run_seeded,
)
from tests.fullgraph.fuzz.report import EQUAL, LOST, NAMED, Configuration, Outcome, Result
from tests.fullgraph.fuzz.shrink import shrink
from tests.fullgraph.fuzz.workers import Workers

SHRUNK, BATCH = 40, 50


class Campaign:
    """Runs the programs of some seeds.

    Args:
        ranks, chunks: which numbers of ranks, and of chunks (0: rows on the device), are drawn
            from for each program.
        device: "cpu" or "cuda".
        deadline_s: of a program.
        loaders: the share of programs that draw batches from shared data.
        graphs, dtypes: what is drawn from; see :class:`Configuration`.
    """

    def __init__(
        self,
        ranks: list[int],
        chunks: list[int],
        device: str = "cpu",
        deadline_s: float = 60,
        loaders: float = 0.0,
        graphs: Sequence[str] = ("pyg",),
        dtypes: Sequence[str] = ("float64",),
    ) -> None:
        self.graphs, self.dtypes = list(graphs), list(dtypes)
        self.ranks, self.chunks, self.device, self.loaders = ranks, chunks, device, loaders
        self.workers = {n: Workers(n, device, deadline_s) for n in ranks}
        self.shrunk = 0

    def run(self, seeds: Iterable[int], tell: Callable[[Result], None]) -> None:
        """Runs the programs of seeds; tells how each ends, and again when it is shorter."""
        for batch in _batches(seeds):
            places = {seed: self.where(seed) for seed in batch}
            batch.sort(key=lambda seed: places[seed].ranks)
            for ranks, workers in self.workers.items():
                tasks = [(run_seeded, (s, places[s])) for s in batch if places[s].ranks == ranks]
                workers.send(tasks)
            for seed in batch:
                outcome = self.workers[places[seed].ranks].receive()
                if outcome.kind in (EQUAL, NAMED):
                    tell(Result(seed, places[seed], outcome))
                else:
                    self.look_again(seed, places[seed], outcome, tell)

    def where(self, seed: int) -> Configuration:
        """Where the program of a seed runs."""
        draw = np.random.default_rng([seed, 1])
        ranks, chunks = int(draw.choice(self.ranks)), int(draw.choice(self.chunks))
        if draw.random() < self.loaders:
            return Configuration(ranks, 0, self.device, str(draw.choice(["auto", "host"])))
        graph, dtype = str(draw.choice(self.graphs)), str(draw.choice(self.dtypes))
        return Configuration(ranks, chunks, self.device, graph=graph, dtype=dtype)

    def look_again(
        self, seed: int, where: Configuration, outcome: Outcome, tell: Callable[[Result], None]
    ) -> None:
        """Tells of a finding, and shrinks it.

        What a statement left undone when the generator tried it may be in the values that are
        expected: only plain tensors that run nothing else say what is right.
        """
        lines = make_loader_program(seed) if where.plan else make_program(seed, where)[0]
        is_final = self.shrunk >= SHRUNK
        if outcome.kind == LOST:
            is_final = True  # each attempt to shrink it takes the deadline, and new ranks
        elif (again := self.outcome_of(lines, seed, where)) is None:
            return  # alone, a statement raises on plain tensors
        elif again.kind in (EQUAL, NAMED):
            if not where.plan and (
                not _is_expected_right(seed, where)
                # The same difference as before, which :func:`observe` allows.
                or self.workers[where.ranks].run(run_seeded, seed, where) == outcome
            ):
                tell(Result(seed, where, again))
                return
            message = f"(the second run: {again.kind}) {outcome.message}"
            outcome, is_final = replace(outcome, message=message), True
        finding = Result(seed, where, outcome, lines, is_final)
        tell(finding)
        if not is_final:
            self.shrunk += 1
            tell(self.shrink(finding))

    def outcome_of(self, lines: list[str], seed: int, where: Configuration) -> Outcome | None:
        """How a program ends; None if a statement raises on plain tensors."""
        workers = self.workers[where.ranks]
        if where.plan:
            return workers.run(run_loader_program, lines, seed, where)
        expected = observe(lines, seed, where)
        return None if expected is None else workers.run(run_program, lines, seed, expected, where)

    def shrink(self, finding: Result) -> Result:
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
        return Result(finding.seed, where, outcome, lines)

    def close(self) -> None:
        """Ends the ranks."""
        for workers in self.workers.values():
            workers.close()


def _is_expected_right(seed: int, where: Configuration) -> bool:
    """Whether the generator saw what the statements give alone."""
    lines, expected = make_program(seed, where)
    right = observe(lines, seed, where)
    return right is not None and not first_difference(right, expected)[1]


def _batches(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while batch := list(islice(rest, BATCH)):
        yield batch
