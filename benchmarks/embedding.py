"""Trains random rows of one table on all ranks at once: lookup, backward and the optimizer's step.

    python benchmarks/embedding.py --world 4 --plans replicated,sharded,host --peers torch

The peer is `torch.nn.Embedding(sparse=True)` with torch's optimizer, a table of each rank's own
whose gradients stay there: what a step costs where nothing is shared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from harness.common import Mark, integers, main, measure, parser, words_of
from harness.ranks import Session
from inputs.arrays import random_ids

import peergraph
from peergraph import optim

_ID_SETS = 4
_OPTIMIZERS = {
    "sgd": (optim.SparseSGD, torch.optim.SGD),
    "adagrad": (optim.SparseAdagrad, torch.optim.Adagrad),
    "adam": (optim.SparseAdam, torch.optim.SparseAdam),
}


def training_step(
    session: Session, rows: int, lookup: Callable[[torch.Tensor], torch.Tensor], optimizer: Any
) -> Callable[[int, Mark], None]:
    """Rows of other ids each time, other ones on each rank."""
    ids = [
        random_ids(session.rank * 1000 + i, session.args.count, rows, session.device)
        for i in range(_ID_SETS)
    ]

    def step(i: int, mark: Mark) -> None:
        optimizer.zero_grad()
        out = lookup(ids[i % _ID_SETS])
        mark("lookup")
        out.backward(torch.ones_like(out))
        mark("backward")
        optimizer.step()
        mark("step")

    return step


def run_peergraph(session: Session, plan: str, name: str, dim: int) -> None:
    rows = session.args.rows
    with session.section(f"peergraph {plan} {name} {dim}", plan=plan, op=name, dim=dim):
        embedding = peergraph.Embedding(
            session.group, dim, num_embeddings=rows, plan=plan, init=torch.nn.init.ones_
        )
        with closing(embedding):
            optimizer = _OPTIMIZERS[name][0](embedding, lr=0.01)
            timing = measure(session, training_step(session, rows, embedding, optimizer))
            add(session, "peergraph", timing, name, dim, plan=plan)


def run_torch(session: Session, name: str, dim: int) -> None:
    rows = session.args.rows
    with session.section(f"torch {name} {dim}", system="torch", op=name, dim=dim):
        table = torch.nn.Embedding(rows, dim, sparse=True, device=session.device)
        optimizer = _OPTIMIZERS[name][1](table.parameters(), lr=0.01)
        timing = measure(session, training_step(session, rows, table, optimizer))
        add(session, "torch, own rows", timing, name, dim, against=session.args.plans[0])


def add(session: Session, system: str, timing: Any, name: str, dim: int, **fields: Any) -> None:
    args = session.args
    session.recorder.add(
        timing, system=system, op=name, dim=dim, count=args.count, table_rows=args.rows, **fields
    )


def run(session: Session) -> None:
    for dim in session.args.dims:
        for name in session.args.optimizers:
            for plan in session.args.plans:
                run_peergraph(session, plan, name, dim)
            if session.wants("torch"):
                run_torch(session, name, dim)


def arguments() -> argparse.ArgumentParser:
    plans = ("replicated", "sharded", "host")
    result = parser(__doc__.splitlines()[0], plans, ",".join(plans))
    result.add_argument("--dims", type=integers, default="64,128")
    result.add_argument("--optimizers", type=words_of(_OPTIMIZERS), default=",".join(_OPTIMIZERS))
    result.add_argument("--count", type=int, default=1 << 18, help="ids looked up on each rank")
    result.add_argument("--rows", type=int, default=1 << 22, help="of the table")
    return result


if __name__ == "__main__":
    sys.exit(main("embedding", run, arguments(), peers=("torch",)))
