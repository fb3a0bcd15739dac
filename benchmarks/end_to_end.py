"""Epochs of GraphSAGE through PyG's NeighborLoader: with prefetching, without, and training alone.

    python benchmarks/end_to_end.py --world 4 --graph papers --plans sharded --out records.jsonl

Three ways: `compute` trains on a few batches that lie in memory; `plain` makes each batch when it
is asked for; `prefetch` is the loader with batches made ahead, for each of --depths, --priorities
(of the side stream) and --blocks (that its gathers may take):

    python benchmarks/end_to_end.py --world 4 --graph products --plans sharded,host \\
        --depths 1,2 --priorities=-1,0 --blocks 0,32,64,auto

All of them with each of --layers: PyG's own (`loader`), Peergraph's in PyG's model (`accelerated`),
and those with features that the first layer reads from the store (`lazy`; its training alone does
so, too). The faster the layers, the more of a step is the loader's:

    python benchmarks/end_to_end.py --world 2 --graph papers --layers loader,accelerated,lazy

Records have rank 0's utilisation of its GPU, as it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from harness.common import (
    PLANS,
    Mark,
    again_and_again,
    integers,
    main,
    measure,
    parser,
    words,
    words_of,
)
from harness.ranks import Session
from harness.records import Timing
from inputs.arrays import batch_nodes
from systems.systems import Case, CaseRunner, System, add_arguments, systems
from torch_geometric.loader import NeighborLoader
from training import Trainer, data_of

import peergraph_pyg

_LAYERS = ("loader", "accelerated", "lazy")
_RESIDENT = 4
# Seconds between two looks at a GPU's utilisation.
_PERIOD = 0.1


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilisation:
    """What NVML, the library behind nvidia-smi, says of a GPU while something runs."""

    def __init__(self, device: torch.device) -> None:
        self.trace: list[tuple[float, int]] = []  # seconds, percent
        self.missing: str | None = None
        self._handle = ctypes.c_void_p()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._check("nvmlInit_v2")
            self._check("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))
        except (OSError, AttributeError, RuntimeError, AssertionError, ValueError) as error:
            self.missing = str(error)

    def _check(self, function: str, *args: Any) -> None:
        code = getattr(self._nvml, function)(*args)
        if code != 0:
            raise RuntimeError(f"{function} returns {code}")

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        if self.missing is not None:
            yield
            return
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        rates, start = _Rates(), time.perf_counter()
        while not ended.wait(_PERIOD):
            try:
                self._check("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates))
            except RuntimeError as error:
                self.missing = str(error)
                return
            self.trace.append((round(time.perf_counter() - start, 3), int(rates.gpu)))

    def mean(self) -> float | None:
        """Percent, without the first and the last second, which see what is around."""
        if not self.trace:
            return None
        end = self.trace[-1][0]
        inside = [value for second, value in self.trace if 1 < second < end - 1]
        return sum(inside) / len(inside) if inside else None


class Ways:
    """The ways to train on one case."""

    def __init__(self, session: Session, data: Any, case: Case, layers: str) -> None:
        self._session = session
        self._case = case
        # Sampling and gathering are two calls of the loader, which are timed apart.
        self._loader = NeighborLoader(
            peergraph_pyg.lazy(data) if layers == "lazy" else data,
            num_neighbors=case.fanouts,
            batch_size=case.batch,
            input_nodes=epoch_seeds(session, case.batch),
            shuffle=True,
            filter_per_worker=False,
        )
        self._trainer = Trainer(session, len(case.fanouts), layers)
        self._compute_ms: float | None = None

    def compute(self) -> None:
        batches = list(itertools.islice(peergraph_pyg.prefetch(self._loader, 0), _RESIDENT))

        def step(i: int, mark: Mark) -> None:
            self._train(batches[i % len(batches)])
            mark("train")

        self._record("compute", step)

    def plain(self) -> None:
        indices = again_and_again(self._loader.batch_sampler)

        def step(_: int, mark: Mark) -> None:
            sample = self._loader.collate_fn(next(indices))
            mark("sample")
            batch = self._loader.filter_fn(sample)
            mark("gather")
            self._train(batch)
            mark("train")

        self._record("plain", step)

    def prefetch(self, depth: int, priority: int, max_blocks: int | None) -> None:
        ahead = peergraph_pyg.prefetch(
            self._loader, depth, priority=priority, max_blocks=max_blocks
        )
        batches, blocks = (
            again_and_again(ahead),
            ahead.prefetch_options.blocks_on(self._session.device),
        )

        def step(_: int, mark: Mark) -> None:
            batch = next(batches)
            mark("loader")
            self._train(batch)
            mark("train")

        try:
            self._record("prefetch", step, depth=depth, priority=priority, blocks=blocks)
        finally:
            batches.close()

    def _train(self, batch: Any) -> None:
        self._trainer.step(batch.x, batch, batch.y[: batch.batch_size])

    def _record(self, way: str, step: Callable[[int, Mark], None], **fields: Any) -> None:
        session = self._session
        utilisation = Utilisation(session.device)
        with utilisation.watch() if session.rank == 0 else contextlib.nullcontext():
            timing = measure(session, step)
        if utilisation.missing is not None:
            session.note(f"  utilisation unknown: {utilisation.missing}")
        wall_ms = self._slowest(timing)
        self._compute_ms = wall_ms if way == "compute" else self._compute_ms
        fields.update(
            way=way,
            utilisation=utilisation.mean(),
            utilisation_trace=utilisation.trace or None,
            over_compute=wall_ms / self._compute_ms if self._compute_ms else None,
        )
        case = replace(self._case, fields={**self._case.fields, **fields})
        self._trainer.finish(session, timing, case)

    def _slowest(self, timing: Timing) -> float:
        walls: list[float] = self._session.group.all_gather(timing.wall_ms)
        return max(walls)


def epoch_seeds(session: Session, batch: int) -> torch.Tensor:
    """This rank's share of the training nodes: full batches, as many as an epoch has."""
    spec, rank, world = session.args.graph, session.rank, session.world
    steps = -(-spec.train_nodes // (batch * world))
    return torch.cat(
        [batch_nodes(spec, i, batch, rank, world, session.device).cpu() for i in range(steps)]
    )


def _limits(text: str) -> list[int | None]:
    return [None if word == "auto" else int(word) for word in words(text)]


def run(session: Session) -> None:
    args = session.args
    args.semantics = ["pyg"]
    runner = CaseRunner(session)
    for system in systems(session, args.feature_dim, labels=True):
        for layers in args.layers:
            runner.run(system, layers, _time(session, system, layers))


def _time(session: Session, system: System, layers: str) -> Callable[[Case], None]:
    args = session.args

    def time_case(case: Case) -> None:
        ways = Ways(session, data_of(system.store), case, layers)
        ways.compute()
        ways.plain()
        for depth, priority, blocks in itertools.product(args.depths, args.priorities, args.blocks):
            ways.prefetch(depth, priority, blocks)

    return time_case


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "sharded", graph="products")
    add_arguments(result, case_list="30-30-30:1024")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--hidden", type=int, default=256)
    result.add_argument(
        "--layers", type=words_of(_LAYERS), default="loader", help=f"of {', '.join(_LAYERS)}"
    )
    result.add_argument("--depths", type=integers, default="1", help="batches made ahead")
    result.add_argument("--priorities", type=integers, default="-1", help="of the side stream")
    result.add_argument(
        "--blocks",
        type=_limits,
        default="auto",
        help="of gathers; 0: no limit, auto: one for each multiprocessor",
    )
    result.set_defaults(iterations=100_000, budget=8.0)
    return result


if __name__ == "__main__":
    sys.exit(main("end_to_end", run, arguments(), peers=()))
