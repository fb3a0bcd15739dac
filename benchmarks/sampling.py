"""Samples mini-batches on all ranks at once, for each fanout, batch size and plan.

    python benchmarks/sampling.py --world 4 --graph products --plans sharded --peers wholegraph

Samples are made with the semantics of DGL's blocks, as WholeGraph makes them, and with PyG's.
sampling_cpu.py compares with a sampler in NumPy on the CPU.
"""

from __future__ import annotations

import argparse
import sys

from harness.common import PLANS, main, measure, parser
from harness.ranks import Session
from systems.systems import Case, CaseRunner, System, add_arguments, systems


def run(session: Session) -> None:
    runner = CaseRunner(session)
    for system in systems(session):

        def time_case(case: Case, system: System = system) -> None:
            timing = measure(session, lambda i, _: system.sample(case.seeds_of(i), i))
            session.recorder.add(timing, **case.fields)

        runner.run(system, None, time_case)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated,sharded", graph="products")
    add_arguments(result)
    return result


if __name__ == "__main__":
    sys.exit(main("sampling", run, arguments(), peers=("wholegraph",)))
