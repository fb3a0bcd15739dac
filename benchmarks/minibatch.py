"""Makes mini-batches on all ranks at once: a sample, and the features of all of its nodes.

    python benchmarks/minibatch.py --world 4 --graph papers --plans sharded --peers wholegraph
    python benchmarks/minibatch.py --world 1 --graph papers --storages float32,bfloat16,int8

With `--storages`, features of each storage are gathered for the same samples, from each of
`--features`, and the sum of the first layer is added: from the gathered rows (`gathered`), and from
the rows where they lie (`in place`, without a gather; not from the host). `ratio` is the time of
the gather, or of the sum in place, over that of float32; `row_ratio` is the bytes of a row over
those of float32; `stored_gbs` is the stored bytes of the batch's nodes over the same time.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from harness.common import PLANS, Mark, main, measure, parser, words, words_of
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import check_rows
from inputs.feature_tables import FULL, TIERS, check_table, feature_table
from systems.systems import Case, CaseRunner, PeergraphSystem, System, add_arguments, systems

from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import Table, TableRows
from peergraph.store import NODE


def run(session: Session) -> None:
    runner = CaseRunner(session)
    if session.args.storages:
        session.args.semantics = ["dgl"]
        for system in systems(session):
            if isinstance(system, PeergraphSystem):
                for features in session.args.features:
                    run_storages(session, runner, system, features)
        return
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


def run_storages(
    session: Session, runner: CaseRunner, system: PeergraphSystem, features: str
) -> None:
    """Times each storage of the features on one tier, float32 first."""
    rows, dim = session.args.graph.num_nodes, session.args.feature_dim
    order = system.store.id_map(NODE).to_internal
    full: dict[tuple[object, ...], float] = {}
    for storage in [FULL, *(s for s in session.args.storages if s != FULL)]:
        with (
            session.section(f"{storage} {features}", system=storage, plan=features),
            closing(feature_table(session, features, rows, dim, storage, order)) as table,
        ):

            def time_case(case: Case, table: Table = table, storage: str = storage) -> None:
                nodes = system.nodes(system.sample(case.seeds_of(0), 0))
                session.together(lambda: check_table(storage, table, nodes))
                # Layers do not read rows in place that each edge would bring over a slow link.
                for way in ("gathered",) if features == "host" else ("gathered", "in place"):
                    timing = time_way(session, system, table, case, way)
                    record(session, timing, table, case, storage, features, way, full)

            runner.run(system, None, time_case)


def time_way(
    session: Session, system: PeergraphSystem, table: Table, case: Case, way: str
) -> Timing:
    """A sample, and the mean of the first layer from gathered rows or from the table's."""

    def step(i: int, mark: Mark) -> None:
        sample = system.sample(case.seeds_of(i), i)
        layer, nodes = system.layers(sample)[0], system.nodes(sample)
        mark("sample")
        if way == "gathered":
            x = table.gather(nodes)
            mark("gather")
        else:
            x = TableRows(table, nodes)
        csc = Csc(layer.indptr, layer.indices, nodes.numel(), transient=True, check=False)
        g_spmm(csc, "copy_u", "mean", x)
        mark("sum")

    return measure(session, step)


def record(
    session: Session,
    timing: Timing,
    table: Table,
    case: Case,
    storage: str,
    features: str,
    way: str,
    full: dict[tuple[object, ...], float],
) -> None:
    """Adds a record with ratios to float32 in the same case, on this rank."""
    stages = timing.stages
    key = (case.fields["fanout"], case.batch, features, way)
    moved = stages["gather"] if way == "gathered" else stages["sum"]
    full.setdefault(key, moved)
    fields = {**case.fields, "system": storage, "plan": features, "layers": way, "against": None}
    session.recorder.add(
        timing,
        feature_dim=table.shape[1],
        row_bytes=table.row_bytes,
        row_ratio=table.row_bytes / (4 * table.shape[1]),
        stored_gbs=case.fields["nodes"] * table.row_bytes / moved / 1e6,
        ratio=moved / full[key],
        **fields,
    )


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated,sharded", graph="products")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--storages", type=words, default="", help="float32, bfloat16 and so on")
    result.add_argument(
        "--features",
        type=words_of(TIERS),
        default="replicated,host",
        help=f"with --storages: tiers of the features, of {', '.join(TIERS)}",
    )
    add_arguments(result)
    return result


if __name__ == "__main__":
    sys.exit(main("minibatch", run, arguments(), peers=("wholegraph",)))
