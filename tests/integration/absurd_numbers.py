"""Calls public functions with absurd numbers, and prints each call that does not end well.

A call must end soon: by a ValueError or TypeError that names the argument, or by a result where the
number is one that makes sense. It must not take memory of that size either. The limit of a call is
processor time, which a busy machine does not change; the clock ends only calls that wait.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import peergraph
from peergraph import Embedding, testing
from peergraph.aggregate import Csc, find_communities, reorder
from peergraph.cli.__main__ import main
from peergraph.fullgraph import FullGraph, RowLayout, capture, cut_chunks
from peergraph.memory import Group, Table, Tiers
from peergraph.memory.region.free_memory import free_host_memory
from peergraph.sampling import (
    NegativeSampler,
    NeighborSampler,
    PinSageSampler,
    RandomWalker,
    StaticShapeSampler,
    presample,
    sample_bounds,
)
from peergraph.store import EdgeFiles, EdgeSource, GraphSource, NodeFiles, Store

ABSURD = (2**31, 2**62, -1, math.nan, 1e300, True, "3", 1.5)
LARGE = (2**31, 2**62)  # that is fine for sizes of memory and seeds
PROCESSOR_S = 5.0
WAITING_S = 60.0
MEMORY = 4 << 30

NODES = 50
EDGES = torch.randint(NODES, (2, 400), generator=torch.Generator().manual_seed(0))


class Late(BaseException):
    """A call took longer than a limit."""


def ring(signal_number: int, frame: FrameType | None) -> None:
    raise Late


Call = Callable[[Any], object]
Case = tuple[str, Call, Collection[Any]]


def source() -> GraphSource:
    return GraphSource.homogeneous(
        NODES, EdgeSource(EDGES), node_tables={"x": torch.ones(NODES, 4)}
    )


def of_store(group: Group) -> list[Case]:
    def build(**options: Any) -> None:
        Store.build(source(), group=group, **options).close()

    def rows(**sizes: Any) -> None:
        Table.create((10, 2), torch.float32, Tiers(**sizes), group)

    x = torch.zeros(NODES, 4)
    return [
        ("memory_budget", lambda v: build(memory_budget=v), LARGE),
        ("host_budget", lambda v: build(host_budget=v), LARGE),
        ("graph_ratio", lambda v: build(graph_ratio=v), ()),
        ("feature_ratio", lambda v: build(feature_ratio=v), ()),
        ("hot_ratio", lambda v: build(machines="shard", hot_ratio=v), ()),
        ("batches_per_exchange", lambda v: build(machines="shard", batches_per_exchange=v), ()),
        ("num_nodes", lambda v: build_of(v, group), ()),
        ("timeout", lambda v: Store.build(source(), timeout=v).close(), (1.5,)),
        ("timeout", lambda v: Group.current(device="cpu", timeout=v), (1.5,)),
        ("host", lambda v: rows(host=v), ()),
        ("shape", lambda v: Table.create((10, v), torch.float32, Tiers(host=10), group), ()),
        ("num_embeddings", lambda v: Embedding(group, 4, num_embeddings=v), ()),
        ("embedding_dim", lambda v: Embedding(group, v, num_embeddings=4), ()),
        ("every", lambda v: peergraph.monitor(every=v).stop(), (1.5,)),
        ("start", lambda v: Store.build(source(), group=group).read_csc(start=v), ()),
        ("stop", lambda v: Store.build(source(), group=group).read_csc(stop=v), ()),
        ("num_nodes", lambda v: FullGraph.build(group, v, EDGES), ()),
        ("memory_budget", lambda v: FullGraph.build(group, NODES, EDGES, memory_budget=v), LARGE),
        ("num_chunks", lambda v: FullGraph.build(group, NODES, EDGES, num_chunks=v), ()),
        ("size", lambda v: RowLayout.contiguous(group, v), ()),
        ("num_chunks", lambda v: cut_chunks(torch.ones(NODES), [NODES], v), ()),
        ("warmup", lambda v: capture(lambda: x, warmup=v, group=group), LARGE),
        ("timeout_s", lambda v: testing.run_ranks(math.floor, 0, timeout_s=v), (1.5,)),
        ("world_size", lambda v: testing.run_ranks(math.floor, v, 1.0), ()),
    ]


def build_of(num_nodes: Any, group: Group) -> None:
    Store.build(GraphSource.homogeneous(num_nodes, EdgeSource(EDGES[:, :0])), group=group).close()


def of_sampling(store: Store) -> list[Case]:
    seeds = torch.arange(5)
    walker = RandomWalker(store)
    sampler = NeighborSampler(store, [2])
    negatives = NegativeSampler(store)

    def pinsage(**numbers: Any) -> None:
        chosen = {"num_walks": 2, "walk_length": 2, "num_neighbors": 2, **numbers}
        PinSageSampler(store, **chosen).sample(seeds, 0)

    def static(num_seeds: Any) -> None:
        StaticShapeSampler(sampler, num_seeds).sample(seeds, 0)

    csc = Csc.from_edge_index(EDGES, NODES, NODES)
    return [
        ("fanouts", lambda v: NeighborSampler(store, [v]).sample(seeds, 0), (-1,)),
        ("seed", lambda v: sampler.sample(seeds, v), LARGE),
        ("length", lambda v: walker.walk(seeds, v, 0), ()),
        ("seed", lambda v: walker.walk(seeds, 2, v), LARGE),
        ("restart_prob", lambda v: walker.walk(seeds, 2, 0, restart_prob=v), ()),
        ("p", lambda v: walker.walk(seeds, 2, 0, p=v), (*LARGE, 1e300, 1.5)),
        ("q", lambda v: walker.walk(seeds, 2, 0, q=v), (*LARGE, 1e300, 1.5)),
        ("num_walks", lambda v: pinsage(num_walks=v), ()),
        ("walk_length", lambda v: pinsage(walk_length=v), ()),
        ("num_neighbors", lambda v: pinsage(num_neighbors=v), ()),
        ("num_layers", lambda v: pinsage(num_layers=v), ()),
        ("restart_prob", lambda v: pinsage(restart_prob=v), ()),
        ("amount", lambda v: NegativeSampler(store, amount=v).sample(seeds, 0), (1.5,)),
        ("tries", lambda v: NegativeSampler(store, tries=v), ()),
        ("sources", lambda v: negatives.sample(v, 0), ()),
        ("seed", lambda v: negatives.sample(5, v), LARGE),
        ("num_seeds", lambda v: static(v), ()),
        ("batch_size", lambda v: presample(store, [2], seeds, v), ()),
        ("epochs", lambda v: presample(store, [2], seeds, 2, epochs=v), ()),
        ("seed", lambda v: presample(store, [2], seeds, 2, seed=v), (*LARGE, -1)),
        ("slack", lambda v: sample_bounds([sampler.sample(seeds, 0)], slack=v), (1.5,)),
        ("num_sources", lambda v: Csc.from_edge_index(EDGES, NODES, v), LARGE),
        ("num_destinations", lambda v: Csc.from_edge_index(EDGES, v, NODES), ()),
        ("rounds", lambda v: find_communities(csc, rounds=v), ()),
        ("largest", lambda v: find_communities(csc, largest=v), LARGE),
        ("seed", lambda v: find_communities(csc, seed=v), (2**31, -1)),
        ("rounds", lambda v: reorder(csc, rounds=v), ()),
    ]


def of_ingest(folder: Path) -> list[Case]:
    (folder / "edges.csv").write_text("a,b\n0,1\n1,2\n")

    def ingest(**options: Any) -> None:
        nodes = NodeFiles(num_nodes=3)
        edges = EdgeFiles(str(folder / "edges.csv"), source="a", destination="b")
        with tempfile.TemporaryDirectory() as place:
            Store.ingest(Path(place) / "store", nodes=nodes, edges=edges, **options)

    return [
        ("memory", lambda v: ingest(memory=v), LARGE),
    ]


def of_pyg(store: Store) -> list[Case]:
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    import peergraph_pyg

    data = Data(x=torch.ones(NODES, 4), edge_index=EDGES)

    def loader(fanout: Any = 2) -> Any:
        return NeighborLoader(peergraph_pyg.stores(store), [fanout], torch.arange(5), batch_size=5)

    def full(**options: Any) -> None:
        peergraph_pyg.full_graph(data, device="cpu", **options)

    return [
        ("num_neighbors", lambda v: list(loader(v)), (-1,)),
        ("depth", lambda v: peergraph_pyg.prefetch(loader(), v), ()),
        ("priority", lambda v: peergraph_pyg.prefetch(loader(), priority=v), (-1,)),
        ("max_blocks", lambda v: peergraph_pyg.prefetch(loader(), max_blocks=v), ()),
        ("seed", lambda v: list(peergraph_pyg.stateful(loader(), v)), (*LARGE, -1)),
        ("epoch", lambda v: peergraph_pyg.stateful(loader()).set_epoch(v), LARGE),
        ("start_batch", lambda v: peergraph_pyg.stateful(loader()).set_epoch(0, v), LARGE),
        ("memory_budget", lambda v: full(memory_budget=v), LARGE),
        ("num_chunks", lambda v: full(offload=True, num_chunks=v), ()),
        ("timeout", lambda v: peergraph_pyg.share(data, device="cpu", timeout=v), (1.5,)),
    ]


def of_dgl(store: Store) -> list[Case]:
    import peergraph_dgl

    graph = peergraph_dgl.from_store(store)
    seeds = torch.arange(5)

    def negatives(count: Any = 5, redundancy: Any = None) -> Any:
        return graph.global_uniform_negative_sampling(count, redundancy=redundancy)

    return [
        ("fanout", lambda v: graph.sample_neighbors(seeds, v), (-1,)),
        ("num_samples", lambda v: negatives(v), ()),
        ("redundancy", lambda v: negatives(redundancy=v), (1.5,)),
    ]


def command(*words: str) -> Call:
    """Runs a command whose last option gets the number; its message becomes an error."""

    def run(value: Any) -> None:
        output = io.StringIO()
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            try:
                status = main([*words[:-1], f"{words[-1]}={value}"])
            except SystemExit as end:
                status = int(end.code or 0)
        if status == 2:
            raise ValueError(output.getvalue())
        if status:
            raise RuntimeError(f"status {status}: {output.getvalue()}")

    return run


# Of a command every number is a text.
PLAN = ("plan", "--gpus", "0,1,2,3", "--nodes", "1000", "--edges", "10000")
FULL = (*PLAN, "--full-graph", "--widths", "8,8,8")
COMMANDS: dict[tuple[str, ...], Collection[Any]] = {
    ("plan", "--gpus", "0,1,2,3", "--nodes"): ("3",),
    ("plan", "--gpus", "0,1,2,3", "--edges"): (2**31, "3"),
    (*PLAN, "--row-bytes"): ("3",),
    (*PLAN, "--skew"): (1.5, "3"),
    (*PLAN, "--gpus"): ("3",),
    (*PLAN, "--budget"): (*LARGE, "3", 1.5),
    (*PLAN, "--graph-ratio"): (),
    (*PLAN, "--feature-ratio"): (),
    (*PLAN, "--full-graph", "--widths"): (),
    (*FULL, "--offload", "yes", "--num-chunks"): ("3",),
    (*FULL, "--offload", "yes", "--host-memory"): (*LARGE, "3", 1.5),
    (*FULL, "--offload", "yes", "--file-memory"): (*LARGE, "3", 1.5),
    (*FULL, "--offload", "yes", "--heads"): ("3",),
    (*FULL, "--offload", "yes", "--labelled"): (),
    ("monitor", "--every"): (),
}


def of_commands() -> list[Case]:
    return [(words[-1], command(*words), accepted) for words, accepted in COMMANDS.items()]


def of_demo() -> list[Case]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from peergraph_demo.command import add_arguments, check_options

    def check(option: str) -> Call:
        def run(value: Any) -> None:
            parser = argparse.ArgumentParser(exit_on_error=False)
            add_arguments(parser)
            try:
                args = parser.parse_args(["--data", "products", f"{option}={value}"])
            except argparse.ArgumentError as error:
                raise ValueError(error) from error
            check_options(args)

        return run

    options: dict[str, Collection[Any]] = {
        **dict.fromkeys(("--ranks", "--epochs", "--batch-size", "--fanouts", "--hidden"), ("3",)),
        "--scale": (),
    }
    return [
        (name, check(name), (*accepted, -1) if name == "--fanouts" else accepted)
        for name, accepted in options.items()
    ]


def of_variables() -> list[Case]:
    def read(name: str, function: Callable[[], object]) -> Call:
        def run(value: Any) -> object:
            os.environ[name] = str(value)
            try:
                return function()
            finally:
                del os.environ[name]

        return run

    import peergraph_pyg

    return [
        (
            "PEERGRAPH_TIMEOUT",
            read("PEERGRAPH_TIMEOUT", lambda: Group.current(device="cpu")),
            (1.5, "3"),
        ),
        (
            "PEERGRAPH_HOST_MEMORY",
            read("PEERGRAPH_HOST_MEMORY", free_host_memory),
            (*LARGE, "3"),
        ),
        (
            "PEERGRAPH_WATCH",
            read("PEERGRAPH_WATCH", lambda: Group.current(device="cpu")),
            (),
        ),
        (
            "PEERGRAPH_PREFETCH",
            read("PEERGRAPH_PREFETCH", lambda: peergraph_pyg.prefetch([1])),
            ("3",),
        ),
    ]


def is_named(name: str, error: Exception) -> bool:
    """Whether a message has the name of an argument or of an option."""
    return name.strip("-").replace("-", "_") in str(error).replace("-", "_")


def complaint(name: str, call: Call, value: Any, accepted: bool) -> str | None:
    """What is wrong with a call, or None."""
    result = None
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    try:
        call(value)
        result = None if accepted else "accepted"
    except (ValueError, TypeError) as error:
        if accepted:
            result = f"refused: {error}"
        elif not is_named(name, error):
            result = f"not named: {type(error).__name__}: {error}"
    except MemoryError as error:  # of our own, before anything is allocated
        if "were asked for" not in str(error) and not is_named(name, error):
            result = f"MemoryError: {error}"
    except Late:
        result = "hangs"
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return result


def run(cases: list[Case]) -> int:
    failures = 0
    for name, call, accepted in cases:
        for value in ABSURD:
            # True equals 1, and 1.5 must not be taken for another number.
            fine = any(type(value) is type(other) and value == other for other in accepted)
            wrong = complaint(name, call, value, fine)
            if wrong is not None:
                failures += 1
                print(f"{name} = {value!r}: {' '.join(wrong.split())[:300]}", flush=True)
    return failures


def main_program() -> int:
    os.environ["PEERGRAPH_HOST_MEMORY"] = str(MEMORY)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + 3 * MEMORY  # that threads, too, take addresses of
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, ring)
    signal.signal(signal.SIGALRM, ring)
    group = Group.current(device="cpu")
    store = Store.build(source(), group=group)
    cases = [*of_store(group), *of_sampling(store), *of_commands(), *of_variables()]
    with tempfile.TemporaryDirectory() as folder:
        for optional in (
            lambda: of_ingest(Path(folder)),
            lambda: of_pyg(store),
            lambda: of_dgl(store),
            of_demo,
        ):
            with contextlib.suppress(ImportError):
                cases += optional()
        only = sys.argv[1:]
        return run([case for case in cases if not only or case[0] in only])


if __name__ == "__main__":
    sys.exit(min(1, main_program()))
