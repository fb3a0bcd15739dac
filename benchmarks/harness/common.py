"""What all benchmarks share: their arguments, and how they time."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from inputs.graphs import PRESETS, GraphSpec, get_spec

from harness.ranks import Session, launch, synchronize
from harness.records import Timing, read_records, tables

# About 5 ms: long enough to queue the calls of a timed loop.
_HOLD_CYCLES = 10_000_000
T = TypeVar("T")
PLANS = ("replicated", "sharded", "host", "auto")


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def words_of(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Parses words that must all be among the choices."""
    names = list(choices)

    def parse(text: str) -> list[str]:
        unknown = [word for word in words(text) if word not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; of {', '.join(names)}")
        return words(text)

    return parse


def integers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def floats(text: str) -> list[float]:
    return [float(word) for word in words(text)]


def cases(text: str) -> list[tuple[list[int], int]]:
    """ "15-10-5:1024,10-25:6000" -> fanouts and batch size of each case."""
    pairs = (word.split(":") for word in words(text))
    return [
        ([int(fanout) for fanout in fanouts.split("-")], int(batch)) for fanouts, batch in pairs
    ]


def _graph(name: str) -> GraphSpec:
    try:
        return get_spec(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser(
    description: str, known_plans: Sequence[str], plans: str, graph: str | None = None
) -> argparse.ArgumentParser:
    """The arguments that all benchmarks take; --graph where a default for it is given."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    cuda = torch.cuda.is_available()
    result.add_argument("--world", type=int, default=torch.cuda.device_count() or 2, help="ranks")
    result.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    if graph is not None:
        names = ", ".join(PRESETS)
        result.add_argument("--graph", type=_graph, default=graph, help=f"{names}, or NAME/DIVISOR")
    result.add_argument("--plans", type=words, default=plans, help=f"of {', '.join(known_plans)}")
    result.add_argument("--peers", type=words, default="", help="to be measured beside Peergraph")
    result.add_argument("--iterations", type=int, default=24, help="timed, at most")
    result.add_argument("--warmup", type=int, default=4)
    result.add_argument("--budget", type=float, default=4.0, help="seconds a timed loop may take")
    result.add_argument("--deadline", type=float, default=400.0, help="seconds for everything")
    result.add_argument("--stall", type=float, default=120.0, help="seconds without progress")
    result.add_argument("--out", default=None, help="file that JSON lines are appended to")
    result.set_defaults(known_plans=known_plans)
    return result


def add_worlds(
    result: argparse.ArgumentParser, counts: Sequence[int] = (1, 2, 4), worlds: str = ""
) -> None:
    """Adds --worlds, for `by_world`: by default, those of `counts` that the GPUs allow."""
    most = max(torch.cuda.device_count(), counts[0])
    default = worlds or ",".join(str(count) for count in counts if count <= most)
    result.add_argument("--worlds", type=integers, default=default, help="ranks of each launch")
    result.set_defaults(world=counts[0])


def by_world(args: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The arguments of a launch for each number of ranks."""
    for world in args.worlds:
        yield argparse.Namespace(**{**vars(args), "world": world})


def main(
    bench: str,
    body: Callable[[Session], None],
    arguments: argparse.ArgumentParser,
    peers: Sequence[str],
    launches: Callable[[argparse.Namespace], Iterable[argparse.Namespace]] = lambda args: [args],
) -> int:
    """Runs a benchmark on its ranks, then prints its tables; also of one that was cut short.

    `launches` gives the arguments of several launches, one after the other; each may look at what
    those before have written to `args.out`.
    """
    args = arguments.parse_args()
    args.bench = bench
    for name, names in (("peers", peers), ("plans", args.known_plans)):
        unknown = sorted(set(getattr(args, name)) - set(names))
        if unknown:
            arguments.error(f"--{name}: unknown {', '.join(unknown)}; there are {', '.join(names)}")
    if args.device == "cuda" and torch.cuda.device_count() < args.world:
        arguments.error(f"--world {args.world}: there are {torch.cuda.device_count()} GPUs")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(args.out) if args.out else Path(folder) / "records.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        args.out = str(path)
        offset = path.stat().st_size
        code = max((launch(body, launched) for launched in launches(args)), default=0)
        records = read_records(path, offset)
    print(tables(records), flush=True)
    return code or int(any("error" in record for record in records))


def again_and_again(loader: Iterable[T]) -> Iterator[T]:
    """Yields what a loader yields, epoch after epoch, without end."""
    while True:
        yield from loader


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch's allocator, or a library beside it, found no memory."""
    text = str(error).lower()
    causes = ("out of memory", "insufficient_resources", "alloc_failed", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(cause in text for cause in causes)


def quantile(values: list[float], fraction: float) -> float:
    """Linear interpolation between the sorted values."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class _Clock:
    """Marks points in time: events of the current stream, or the CPU's clock."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[torch.cuda.Event | float] = []
        self._names: list[str] = []

    def mark(self, name: str) -> None:
        """Ends the stage `name`; the first mark begins the first stage."""
        self._names.append(name)
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def stages(self) -> dict[str, float]:
        """Milliseconds of each stage, once the device is done."""
        return {name: self._between(i, i + 1) for i, name in enumerate(self._names[1:])}

    def total(self) -> float:
        return self._between(0, len(self._marks) - 1)

    def _between(self, begin: int, end: int) -> float:
        first, last = self._marks[begin], self._marks[end]
        if isinstance(first, torch.cuda.Event):
            return float(first.elapsed_time(last))
        return (last - first) * 1e3


Mark = Callable[[str], None]


def measure(session: Session, step: Callable[[int, Mark], object], hold: bool = False) -> Timing:
    """Times step(i, mark) on all ranks at once; collective.

    A `mark(name)` at the end of each stage of the step gives the stages' times. The number of
    iterations shrinks, to 3 at least, to stay within the budget. With `hold`, for steps that do not
    wait for the device, it is held back until they are queued: their times are the device's alone,
    and the host's share is told by `host_ms`.
    """
    args, device = session.args, session.device
    for i in range(args.warmup):
        step(i, _ignore)
    # The first calls hold set-up costs, so that one more is timed to set the number of iterations.
    synchronize(device)
    start = time.perf_counter()
    step(args.warmup, _ignore)
    synchronize(device)
    slowest = max(session.group.all_gather(time.perf_counter() - start))
    iterations = max(3, min(args.iterations, int(args.budget / max(slowest, 1e-6))))

    gc.collect()  # a collection of all that was made until now takes a part of a second
    session.barrier()
    clocks = [_Clock(device) for _ in range(iterations)]
    if hold and device.type == "cuda":
        torch.cuda._sleep(_HOLD_CYCLES)
    start = time.perf_counter()
    for i, clock in enumerate(clocks):
        clock.mark("begin")
        step(args.warmup + 1 + i, clock.mark)
        clock.mark("end")
    host_ms = (time.perf_counter() - start) * 1e3 / iterations
    synchronize(device)
    wall_ms = (time.perf_counter() - start) * 1e3 / iterations

    totals = [clock.total() for clock in clocks]
    stages = [clock.stages() for clock in clocks]
    session.note(f"  {quantile(totals, 0.5):.3f} ms, {iterations} iterations")
    return Timing(
        ms=quantile(totals, 0.5),
        p10=quantile(totals, 0.1),
        p90=quantile(totals, 0.9),
        host_ms=host_ms,
        wall_ms=None if hold else wall_ms,
        iterations=iterations,
        stages={
            name: quantile([stage[name] for stage in stages], 0.5)
            for name in stages[0]
            if name != "end"
        },
    )


def _ignore(_: str) -> None:
    pass
