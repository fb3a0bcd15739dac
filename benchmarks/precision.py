"""Stages of a training step in float32, with TF32 and under autocast, and the kernels that it runs.

    python benchmarks/precision.py --world 1 --graph papers --plans replicated --peers wholegraph

The ways are those of training.py: `lazy` and `accelerated` are PyG's GraphSAGE with Peergraph's
layers on the batches of PyG's loader, where `lazy` gathers neither features nor labels that no
step reads; `loader` is PyG's own model on the same batches; `csr` is
PyG's SAGEConv on WholeGraph's batches; `captured` is `lazy` with `peergraph_pyg.capture`, whose
steps have no stages that could be timed. All run with each of --precisions: `tf32` is
``torch.set_float32_matmul_precision("high")``, the last ones are ``torch.autocast``. With
`--storages float32,bfloat16`, Peergraph's ways also run on features that the store keeps in
bfloat16; `ratio` is their time over that with float32. With --kernels N, the N kernels and copies
that keep the GPU busy longest in one step are printed, too. The host limits fast steps on a machine
with slow cores: with --hold, the stages after the gather are the GPU's time alone.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from harness.common import PLANS, Mark, again_and_again, main, measure, parser, words, words_of
from harness.kernel_times import busiest_kernels
from harness.ranks import Session
from inputs.arrays import label_rows
from inputs.feature_tables import FULL
from systems.systems import Case, CaseRunner, PeergraphSystem, System, add_arguments, systems
from torch import Tensor
from torch_geometric.loader import NeighborLoader
from training import Trainer, data_of, loss_of

PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_WAYS = ("lazy", "captured", "accelerated", "loader", "csr")
_LAZY_WAYS = ("lazy", "captured")
_PROFILED_STEPS = 4
# Captured training makes its graphs in the first steps.
_STEPS_BEFORE_REPLAYS = 8
_HOLD_CYCLES = 60_000_000


class Step:
    """A step of a trainer in one precision, with a mark after each stage."""

    def __init__(self, trainer: Trainer, precision: str, device: torch.device, hold: bool) -> None:
        self._trainer = trainer
        self._hold = hold and device.type == "cuda"
        self._dtype = PRECISIONS[precision]
        self._device = device
        half = precision == "float16" and device.type == "cuda"
        self._scaler = torch.amp.GradScaler(device.type, enabled=half)

    def __call__(self, x: Any, edges: Any, labels: Tensor, mark: Mark) -> None:
        trainer, dtype = self._trainer, self._dtype
        if self._hold:
            torch.cuda._sleep(_HOLD_CYCLES)
            mark("held")
        with _casts(self._device, dtype):
            loss = F.cross_entropy(trainer.model(x, edges)[: labels.numel()], labels)
        mark("forward")
        trainer.optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        mark("backward")
        self._scaler.step(trainer.optimizer)
        self._scaler.update()
        mark("optimizer")
        trainer.loss = loss.detach()


def _casts(device: torch.device, dtype: torch.dtype | None) -> Any:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """Products of float32 matrices in TF32, or not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _time_way(session: Session, system: System, way: str) -> Callable[[Case], None]:
    def time_case(case: Case) -> None:
        batches = _wholegraph_batches if way == "csr" else _loader_batches
        for precision in session.args.precisions:
            with session.section(f"{way} {precision}"), _products(precision):
                layers = "lazy" if way in _LAZY_WAYS else way
                trainer = Trainer(session, len(case.fanouts), layers)
                if way == "captured":
                    run = _captured_steps(session, system, case, trainer, precision)
                else:
                    step = Step(trainer, precision, session.device, session.args.hold)
                    run = batches(session, system, case, way, step)
                case.fields["setting"] = precision
                trainer.finish(session, measure(session, run), case)
                _print_kernels(session, f"{way} {precision}", run)

    return time_case


def _print_kernels(session: Session, name: str, run: Callable[[int, Mark], None]) -> None:
    count = session.args.kernels
    if count == 0 or session.device.type != "cuda" or session.rank != 0:
        return

    def steps() -> None:
        for i in range(_PROFILED_STEPS):
            run(i, lambda _: None)

    print(f"{name}: microseconds and calls of a step")
    for kernel, us, calls in busiest_kernels(steps)[:count]:
        print(f"{us / _PROFILED_STEPS:10.0f} {calls / _PROFILED_STEPS:6.2f}  {kernel[:110]}")
    sys.stdout.flush()


def _wholegraph_batches(
    session: Session, system: System, case: Case, way: str, step: Step
) -> Callable[[int, Mark], None]:
    labels = [label_rows(seeds, session.args.graph.num_classes) for seeds in case.seeds]

    def run(i: int, mark: Mark) -> None:
        sample = system.sample(case.seeds_of(i), i)
        mark("sample")
        x = system.gather(sample)
        mark("gather")
        step(x, system.layers(sample), labels[i % len(labels)], mark)

    return run


def _loader(system: System, case: Case, way: str) -> NeighborLoader:
    # Only the ways of the loader need the adapter.
    import peergraph_pyg

    data = data_of(system.store)
    return NeighborLoader(
        peergraph_pyg.lazy(data, "x", "y") if way in _LAZY_WAYS else data,
        num_neighbors=case.fanouts,
        batch_size=case.batch,
        input_nodes=torch.cat(case.seeds).cpu(),
        filter_per_worker=False,
    )


def _captured_steps(
    session: Session, system: System, case: Case, trainer: Trainer, precision: str
) -> Callable[[int, Mark], None]:
    # Only the ways of the loader need the adapter.
    import peergraph_pyg

    loader = _loader(system, case, "captured")
    training = peergraph_pyg.capture(loader, trainer.model, trainer.optimizer, loss_of)
    losses = again_and_again(training)

    def run(_: int, mark: Mark) -> None:
        with _casts(session.device, PRECISIONS[precision]):
            trainer.loss = next(losses)
        mark("step")

    for i in range(_STEPS_BEFORE_REPLAYS):
        run(i, lambda _: None)
    return run


def _loader_batches(
    session: Session, system: System, case: Case, way: str, step: Step
) -> Callable[[int, Mark], None]:
    loader = _loader(system, case, way)
    indices = again_and_again(loader.batch_sampler)

    def run(_: int, mark: Mark) -> None:
        sample = loader.collate_fn(next(indices))
        mark("sample")
        batch = loader.filter_fn(sample)
        mark("gather")
        step(batch.x, batch, batch.y[: batch.batch_size], mark)

    return run


def run(session: Session) -> None:
    args = session.args
    args.semantics = ["dgl", "pyg"]
    runner = CaseRunner(session)
    for system in systems(session, args.feature_dim, labels=True, storages=args.storages):
        of_wholegraph = not isinstance(system, PeergraphSystem)
        if system.semantics != ("dgl" if of_wholegraph else "pyg"):
            continue
        for way in args.ways:
            if (way == "csr") == of_wholegraph:
                runner.run(system, way, _time_way(session, system, way))


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated", graph="products")
    add_arguments(result, case_list="30-30-30:1024")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--hidden", type=int, default=256)
    result.add_argument(
        "--ways", type=words_of(_WAYS), default="lazy,loader,csr", help=f"of {', '.join(_WAYS)}"
    )
    result.add_argument("--storages", type=words, default=FULL, help="float32, bfloat16 and so on")
    result.add_argument(
        "--precisions",
        type=words_of(PRECISIONS),
        default="float32,tf32,bfloat16",
        help=f"of {', '.join(PRECISIONS)}",
    )
    result.add_argument(
        "--hold",
        action="store_true",
        help="hold the GPU back until all calls after the gather are queued: stages are its alone",
    )
    result.add_argument("--kernels", type=int, default=0, help="printed for each way and precision")
    result.set_defaults(budget=1.0)
    return result


if __name__ == "__main__":
    sys.exit(main("precision", run, arguments(), peers=("wholegraph",)))
