"""Makes mini-batches on all ranks at once: a sample, and the features of all of its nodes.

python benchmarks/minibatch.py --world 4 --graph papers --plans sharded --peers wholegraph
"""

from __future__ import annotations

import argparse
import sys

from harness.common import PLANS, Mark, main, measure, parser
from harness.ranks import Session
from inputs.arrays import check_rows
from systems.systems import Case, CaseRunner, System, add_arguments, systems


def run(session: Session) -> None:
    runner = CaseRunner(session)
    for system in systems(session, session.args.feature_dim):

        def time_case(case: Case, system: System = system) -> None:
            def step(i: int, mark: Mark) -> None:
                sample = system.sample(case.seeds_of(i), i)
                mark("sample")
                system.gather(sample)
                mark("gather")

            def check() -> None:
                sample = system.sample(case.seeds_of(0), 0)
                check_rows(system.system, system.gather(sample), system.nodes(sample))

            session.together(check)
            session.recorder.add(
                measure(session, step), feature_dim=session.args.feature_dim, **case.fields
            )

        runner.run(system, None, time_case)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated,sharded", graph="products")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    add_arguments(result)
    return result


if __name__ == "__main__":
    sys.exit(main("minibatch", run, arguments(), peers=("wholegraph",)))
