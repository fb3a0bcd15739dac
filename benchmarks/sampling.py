"""Samples mini-batches on all ranks at once, for each fanout, batch size and plan.

    python benchmarks/sampling.py --world 4 --graph products --plans sharded --peers wholegraph

    python benchmarks/sampling.py --device cpu --world 1 --threads 16 --graph products/8 \\
        --plans replicated --peers numpy

Samples are made with the semantics of DGL's blocks, as WholeGraph makes them, and with PyG's.
"""

from __future__ import annotations

import argparse
import sys

import torch
from harness.common import PLANS, main, measure, parser
from harness.ranks import Session
from systems.systems import Case, CaseRunner, System, add_arguments, systems


def run(session: Session) -> None:
    if session.args.threads:
        torch.set_num_threads(session.args.threads)
    runner = CaseRunner(session)
    for system in systems(session):

        def time_case(case: Case, system: System = system) -> None:
            timing = measure(session, lambda i, _: system.sample(case.seeds_of(i), i))
            session.recorder.add(timing, **case.fields)

        runner.run(system, None, time_case)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated,sharded", graph="products")
    result.add_argument("--threads", type=int, default=0, help="of a CPU rank; 0: as torch has it")
    add_arguments(result)
    return result


if __name__ == "__main__":
    sys.exit(main("sampling", run, arguments(), peers=("wholegraph", "numpy")))
