"""Memory of full-graph training: buffers of rows that an epoch takes, and layers that fit (MG-GCN).

    python benchmarks/fullgraph_memory.py --graphs reddit --worlds 1,2 --peers csr --cap 30
    python benchmarks/fullgraph_memory.py --graphs products --hidden 128 --dropout 0.5

A buffer is the hidden features of a rank's nodes. Part `buffers`: the most that an epoch allocates
above what lies there before (`resident_gib`: edges, features, the sum of the features, parameters),
in buffers; MG-GCN 4.2 and 4.3 have layers + 5. `build_bytes` is the peak while the graph is
partitioned, in bytes for each of the rank's edges, beside the user's edge list. Part `layers`: how
many layers fit in `--cap` GiB (MG-GCN, Figure 12), by the line through two measured peaks, and on
GPUs how many `ran`. One GPU runs them while torch's allocator has no more than the cap; of several,
what the allocators took from the devices, and the buffers for rows of other ranks, must be within
it.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
from collections.abc import Callable

import torch
from fullgraph import Case, Epoch, Model
from harness.common import (
    add_worlds,
    by_world,
    integers,
    is_out_of_memory,
    main,
    parser,
    words,
    words_of,
)
from harness.ranks import Session

from peergraph.fullgraph import FullGraph
from peergraph.fullgraph.exchange.transport import Transport

PARTS = ("buffers", "layers")


def peak_of(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Bytes that were allocated before some work, and the most while it ran; 0 before on a CPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return before, torch.cuda.max_memory_allocated()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    results = profile.profiler.kineto_results.events()
    events = [event for event in results if event.name() == "[memory]"]
    allocated = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        most = max(most, allocated)
    return 0, most


def epoch_peak(session: Session, epoch: Epoch) -> tuple[int, int]:
    """The largest of the ranks: bytes before an epoch, and of the epoch above these."""
    for _ in range(3):
        epoch()
    session.barrier()
    before, most = peak_of(epoch, session.device)
    everyone = session.group.all_gather((before, most - before))
    return max(b for b, _ in everyone), max(more for _, more in everyone)


def _make(case: Case, system: str, model: Model) -> Epoch:
    return case.by_peergraph(model, "random") if system == "peergraph" else case.by_csr(model)


def model_of(args: argparse.Namespace, layers: int) -> Model:
    return Model(args.kind, layers, args.hidden, args.dropout)


def measure_buffers(case: Case, system: str, counts: list[int]) -> dict[int, tuple[int, int]]:
    """Records how many buffers of rows an epoch takes, for each number of layers.

    Returns:
        By number of layers: bytes that are allocated before the epoch, and the most bytes that the
        epoch allocates besides.
    """
    session, args = case.session, case.session.args
    unit = -(-case.nodes // session.world) * args.hidden * 4
    by_layers = {}
    for layers in counts:
        model = model_of(args, layers)
        fields = {"graph": case.spec.name, "layers": str(model), "system": system}
        with session.section(" ".join(fields.values()), **fields):
            epoch = session.together(lambda m=model: _make(case, system, m))
            before, more = by_layers[layers] = epoch_peak(session, epoch)
            reserved = torch.cuda.memory_reserved() if session.device.type == "cuda" else None
            session.recorder.note(
                part="buffers",
                ms=0.0,
                buffers=more / unit,
                most_allowed=layers + 5,
                resident_gib=before / 2**30,
                peak_gib=(before + more) / 2**30,
                reserved_gib=None if reserved is None else reserved / 2**30,
                **fields,
            )
            del epoch
    return by_layers


def measure_layers(case: Case, system: str, peaks: dict[int, tuple[int, int]]) -> None:
    """Records how many layers fit: expected by two peaks and, on one GPU, run within the limit."""
    session, args = case.session, case.session.args
    (few, first), (many, second) = sorted(peaks.items())[-2:]
    each = (sum(second) - sum(first)) / (many - few)
    expected = int((args.cap * 2**30 - sum(first)) / each) + few
    fields = {"graph": case.spec.name, "system": system, "part": "layers"}
    with session.section(f"{expected} layers of {system}", **fields):
        ran = None
        if session.device.type == "cuda":
            run = runs_capped if session.world == 1 else runs_within
            ran = most_that_run(lambda layers: run(case, system, layers), expected, session)
        session.recorder.note(
            ms=0.0,
            hidden=args.hidden,
            dropout=args.dropout,
            cap_gib=args.cap,
            layers_fit=expected,
            ran=ran,
            **fields,
        )


def most_that_run(run: Callable[[int], bool], expected: int, session: Session) -> int:
    """The most layers, up to the expected number, that run; few of them are tried."""
    fails, step, ran = expected + 1, 1, 0
    tried = expected
    while tried > 0 and fails - ran > 1:
        fits = run(tried)
        session.note(f"{tried} layers {'run' if fits else 'do not fit'}")
        if fits:
            ran = tried
        else:
            fails, step = tried, 2 * step
        tried = (ran + fails) // 2 if ran else fails - step
    return ran


def runs_capped(case: Case, system: str, layers: int) -> bool:
    """Whether epochs of so many layers run while the allocator of one GPU has no more memory."""
    args, device = case.session.args, case.device
    total = torch.cuda.get_device_properties(device).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(args.cap * 2**30 / total)
    try:
        _train_twice(case, system, layers)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return True


def runs_within(case: Case, system: str, layers: int) -> bool:
    """Whether epochs of so many layers take no more than the cap from any GPU. Collective.

    A cap would end one rank while the others wait for its rows.
    """
    session = case.session
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _train_twice(case, system, layers)
    slots = Transport.of(session.group).reserve(1) or []
    reserved = torch.cuda.max_memory_reserved() + sum(slot.numel() for slot in slots)
    return bool(max(session.group.all_gather(reserved)) <= session.args.cap * 2**30)


def _train_twice(case: Case, system: str, layers: int) -> None:
    epoch = _make(case, system, model_of(case.session.args, layers))
    for _ in range(2):
        epoch()
    torch.cuda.synchronize()


def measure_build(case: Case) -> None:
    """Records the peak while the graph is partitioned."""
    session = case.session
    edges = case.graph.edge_index(False)
    count = edges.shape[1] // session.world
    relation = ("_N", "_E", "_N")

    def build() -> FullGraph:
        return FullGraph.build(session.group, {"_N": case.nodes}, {relation: edges})

    build()
    before, most = peak_of(build, session.device)
    most = max(session.group.all_gather(most - before))
    session.recorder.note(
        part="buffers", graph=case.spec.name, system="build", ms=0.0, build_bytes=most / count
    )


def run(session: Session) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    args = session.args
    systems = ["peergraph", *(["pyg csr"] if session.wants("csr") and session.world == 1 else [])]
    for name, system in itertools.product(args.graphs, systems):
        with session.stage(f"graph {name}"):
            case = Case(session, name)
        if system == "peergraph":
            with session.section(f"build of {name}"):
                measure_build(case)
            case.partition("random")
            del case.graph  # a system has nothing of the other one beside it
        peaks = measure_buffers(case, system, args.layers)
        if "layers" in args.parts and len(peaks) > 1:
            measure_layers(case, system, peaks)
        del case


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--parts", type=words_of(PARTS), default="buffers,layers")
    result.add_argument("--graphs", type=words, default="reddit")
    result.add_argument("--kind", default="GCN", help="GCN, SAGE or GAT")
    result.add_argument("--layers", type=integers, default="2,4,8", help="of each model")
    result.add_argument("--hidden", type=int, default=512, help="columns of hidden features")
    result.add_argument("--dropout", type=float, default=0.0, help="after each hidden layer")
    result.add_argument("--cap", type=float, default=30.0, help="GiB of each rank")
    add_worlds(result)
    return result


if __name__ == "__main__":
    # Segments that grow in place: a buffer that was freed serves smaller ones without loss.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    sys.exit(main("fullgraph_memory", run, arguments(), ("csr",), by_world))
