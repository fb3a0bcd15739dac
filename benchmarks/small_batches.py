"""Small batches, where the host can be the limit: epochs beside the time of their kernels.

    python benchmarks/small_batches.py --graph products --plans replicated --peers wholegraph
    python benchmarks/small_batches.py --graph papers --plans replicated --layers accelerated
    python benchmarks/small_batches.py --graph papers --plans auto --world 2 --layers accelerated
    python benchmarks/small_batches.py --graph papers --plans auto --layers accelerated --turns 20
    python benchmarks/small_batches.py --graph papers --plans auto --layers accelerated --links

`kernels_ms` is the time of all kernels and copies of a step on the GPU, each for itself, in a loop
that makes each batch when it is asked for; `over_kernels` is the time of a step (`wall_ms`) over
it. The ways: `loader` is the unmodified NeighborLoader, which makes a batch ahead; `captured` is
`peergraph_pyg.capture`; `compute` trains on batches that lie in memory, and `batches` makes them
and trains on none: their `ms_host` is what Python needs. With PyG's layers (`loader`) and
Peergraph's (`accelerated`). On several GPUs, DistributedDataParallel averages the gradients. With
`--links`, a batch has so many links, each with a negative one, of a LinkNeighborLoader.

`--turns` compares who makes the batches, by the same model in the same process, as machines differ
more than these: batches in `memory`, made ahead as the loader does it (`ahead`), made ahead by a
`thread` of Python, by the `loop` on that thread's stream, by the one of these two that has shorter
steps (`adaptive`: its trials count), or on `request`. In each round, all take a turn of some steps;
the times are those of a step, by round.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from end_to_end import epoch_seeds
from harness.common import PLANS, Mark, again_and_again, main, measure, parser, quantile, words_of
from harness.kernel_times import length_of, spans_by_kind
from harness.ranks import Session, synchronize
from harness.records import Timing
from systems.systems import Case, CaseRunner, System, add_arguments, systems
from torch import Tensor
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from training import Trainer, data_of, loss_of, train_on

import peergraph_pyg
from peergraph_pyg.prefetching.prefetch_iterator import PrefetchIterator
from peergraph_pyg.prefetching.prefetcher import plain_iterator
from peergraph_pyg.prefetching.shorter_steps import ShorterSteps

_LAYERS = ("loader", "accelerated", "lazy")
_WAYS = ("loader", "captured", "compute", "batches")
_RESIDENT = 4
_PROFILED = 24
# Steps before the profile of a way: the captured one makes its graphs in the first ones.
_BEFORE = 8
_MAKERS = ("memory", "ahead", "thread", "loop", "adaptive", "request")
# Steps before the first turns, in which an adaptive loop makes its first choice.
_BEFORE_TURNS = 40
# Steps of a turn that are not counted: the first batches are made before any step.
_UNCOUNTED = 2


def link_loss_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """The loss of a batch of PyG's loader of links."""
    device = batch.x.device
    out = model(batch.x, batch)
    source, destination = out[batch.edge_label_index.to(device, non_blocking=True)]
    labels = batch.edge_label.to(device, non_blocking=True)
    return F.binary_cross_entropy_with_logits((source * destination).sum(1), labels)


class Ways:
    """The ways to train on one case."""

    def __init__(self, session: Session, data: Any, case: Case, layers: str) -> None:
        self._session, self._case, self._layers = session, case, layers
        data = peergraph_pyg.lazy(data) if layers == "lazy" else data
        options = {"batch_size": case.batch, "shuffle": True}
        # The same number of seeds on each rank.
        count = session.args.graph.train_nodes // session.world
        seeds = epoch_seeds(session, case.batch)[:count]
        self._loss = link_loss_of if session.args.links else loss_of
        self._loader: Any
        if session.args.links:
            others = torch.randint(session.args.graph.num_nodes, (len(seeds),))
            links = torch.stack([seeds, others])
            self._loader = LinkNeighborLoader(
                data, case.fanouts, links, neg_sampling_ratio=1.0, **options
            )
        else:
            self._loader = NeighborLoader(data, case.fanouts, input_nodes=seeds, **options)
        self._kernels_ms: float | None = None

    def take_turns(self) -> None:
        """Trains with each of the makers in turns."""
        session = self._session
        trainer = Trainer(session, len(self._case.fanouts), self._layers)
        memory = list(itertools.islice(peergraph_pyg.prefetch(self._loader, 0), _RESIDENT))
        adaptive = ShorterSteps()
        sources: dict[str, Any] = {
            "memory": memory,
            "ahead": peergraph_pyg.prefetch(self._loader, 1),
            "thread": _BatchesMadeBy(self._loader, session.device, None),
            "loop": _BatchesMadeBy(self._loader, session.device, _Loop()),
            "adaptive": _BatchesMadeBy(self._loader, session.device, adaptive),
            "request": peergraph_pyg.prefetch(self._loader, 0),
        }
        times: dict[str, list[float]] = {maker: [] for maker in _MAKERS}
        for turn in range(session.args.turns + 1):
            for maker in _MAKERS:
                count = session.args.steps if turn else _BEFORE_TURNS
                ms = self._take_turn(self._train(trainer, sources[maker]), count)
                if turn:
                    times[maker].append(ms)
            session.note(f"round {turn} of {session.args.turns}")
        for maker in _MAKERS:
            ms = [quantile(times[maker], fraction) for fraction in (0.5, 0.1, 0.9)]
            over = [mine / least for mine, least in zip(times[maker], times["memory"], strict=True)]
            fields = {"part": "turns", "way": maker, "over_memory": quantile(over, 0.5)}
            if maker == "adaptive":
                fields["by_thread"] = adaptive.by_thread
            case = replace(self._case, fields={**self._case.fields, **fields})
            trainer.finish(session, Timing(*ms, ms[0], ms[0], session.args.turns), case)

    def _take_turn(self, steps: Generator[Any, None, None], count: int) -> float:
        """Returns the milliseconds of a step, on the slowest rank."""
        for _ in range(_UNCOUNTED):
            next(steps)
        self._session.barrier()
        start = time.perf_counter()
        for _ in range(count):
            next(steps)
        synchronize(self._session.device)
        ms = (time.perf_counter() - start) * 1e3 / count
        steps.close()  # ends the thread, which would go on in the turns of the others
        return max(self._session.group.all_gather(ms))

    def run(self, way: str) -> None:
        trainer = Trainer(self._session, len(self._case.fanouts), self._layers)
        steps: Iterator[Any] = getattr(self, way)(trainer)
        if self._kernels_ms is None:
            plain = self._train(trainer, peergraph_pyg.prefetch(self._loader, 0))
            self._kernels_ms = self._profile(plain)[0]
        own, busy = self._profile(steps)

        def step(_: int, mark: Mark) -> None:
            next(steps)
            mark("step")

        timing = measure(self._session, step)
        fields = {"way": way, "kernels_ms": self._kernels_ms, "own_kernels_ms": own}
        if self._kernels_ms:
            fields["over_kernels"] = (timing.wall_ms or timing.ms) / self._kernels_ms
            fields["busy_ms"] = busy
        if self._session.device.type == "cuda":
            fields["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        case = replace(self._case, fields={**self._case.fields, **fields})
        trainer.finish(self._session, timing, case)

    def loader(self, trainer: Trainer) -> Iterator[Any]:
        return self._train(trainer, self._loader)

    def captured(self, trainer: Trainer) -> Iterator[Any]:
        training = peergraph_pyg.capture(self._loader, trainer.model, trainer.optimizer, self._loss)
        for trainer.loss in again_and_again(training):
            yield

    def compute(self, trainer: Trainer) -> Iterator[Any]:
        ahead = peergraph_pyg.prefetch(self._loader, 0)
        return self._train(trainer, list(itertools.islice(ahead, _RESIDENT)))

    def batches(self, trainer: Trainer) -> Iterator[Any]:
        return again_and_again(peergraph_pyg.prefetch(self._loader, 0))

    def _train(self, trainer: Trainer, batches: Any) -> Generator[Any, None, None]:
        for batch in again_and_again(batches):
            loss = self._loss(trainer.model, batch)
            trainer.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            trainer.optimizer.step()
            trainer.loss = loss.detach()
            yield

    def _profile(self, steps: Iterator[Any]) -> tuple[float, float]:
        """Returns the milliseconds of the kernels of a step, and those in which any runs."""
        for _ in range(_BEFORE):
            next(steps)
        if self._session.device.type == "cpu":
            return 0.0, 0.0
        torch.cuda.synchronize()
        work: Callable[[], object] = lambda: [next(steps) for _ in range(_PROFILED)]  # noqa: E731
        spans = spans_by_kind(work, {})["rest"]
        total = sum(end - begin for begin, end in spans)
        return total / _PROFILED / 1e3, length_of(spans) / _PROFILED / 1e3


class _Loop(ShorterSteps):
    """The loop makes all batches but the first."""

    def count_step(self) -> None:
        self.by_thread = False


class _BatchesMadeBy:
    """Iterates a loader; `way` says who makes the next batch: None: a thread of Python."""

    def __init__(
        self, loader: NeighborLoader, device: torch.device, way: ShorterSteps | None
    ) -> None:
        self._loader, self._device, self._way = loader, device, way

    def __iter__(self) -> PrefetchIterator:
        return PrefetchIterator(plain_iterator(self._loader), 1, self._device, way=self._way)


def run(session: Session) -> None:
    args = session.args
    args.semantics = ["pyg"]
    runner = CaseRunner(session)
    for system in systems(session, args.feature_dim, labels=True):
        if system.system == "peergraph":
            for layers in args.layers:
                runner.run(system, layers, _time(session, system, layers))
        else:
            runner.run(system, "csr", _time_peer(session, system))


def _time(session: Session, system: System, layers: str) -> Callable[[Case], None]:
    def time_case(case: Case) -> None:
        ways = Ways(session, data_of(system.store), case, layers)
        if session.args.turns:
            with session.section("turns", **case.fields):
                ways.take_turns()
            return
        for way in session.args.ways:
            with session.section(way, **{**case.fields, "way": way}):
                ways.run(way)

    return time_case


def _time_peer(session: Session, system: System) -> Callable[[Case], None]:
    def time_case(case: Case) -> None:
        trainer = Trainer(session, len(case.fanouts), "csr")
        step = train_on(session, system, case, trainer, "csr")
        trainer.finish(session, measure(session, step), case)

    return time_case


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated", graph="products")
    add_arguments(result, case_list="15-10-5:1024")
    result.add_argument("--feature-dim", type=int, default=128, help="float32 a node")
    result.add_argument("--hidden", type=int, default=256)
    for name, choices in (("layers", _LAYERS), ("ways", _WAYS)):
        default = "loader,accelerated" if name == "layers" else ",".join(choices)
        result.add_argument(
            f"--{name}", type=words_of(choices), default=default, help=f"of {', '.join(choices)}"
        )
    turns = "rounds in which the makers of batches take turns, in place of the ways"
    result.add_argument("--turns", type=int, default=0, help=turns)
    result.add_argument("--links", action="store_true", help="train on links")
    result.add_argument("--steps", type=int, default=32, help="of a turn")
    result.set_defaults(world=1, iterations=100_000, warmup=8, budget=3.0)
    return result


if __name__ == "__main__":
    sys.exit(main("small_batches", run, arguments(), peers=("wholegraph",)))
