"""What uses a store keeps its memory, or is told that the store is closed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import peergraph._C as _C
from peergraph import Embedding, optim
from peergraph.aggregate import Csc, g_spmm
from peergraph.memory import Group, Table, TableRows, Tiers, table_argument
from peergraph.memory.device.launching import Buffers
from peergraph.sampling import (
    NegativeSampler,
    NeighborSampler,
    PinSageSampler,
    RandomWalker,
    StaticShapeSampler,
    presample,
)
from peergraph.sampling.neighbor import native_result
from peergraph.store import EdgeSource, GraphSource, Store, TableTensor, graph_argument
from peergraph.testing import run_ranks
from tests.named_case import named_case

NODES, EDGES = 20000, 200000
CLOSED = "this (store|table) has been closed"

Use = Callable[[], object]


def make_store(device: str | torch.device = "cpu") -> Store:
    generator = torch.Generator().manual_seed(0)
    coo = torch.randint(NODES, (2, EDGES), generator=generator)
    node_tables = {"x": torch.ones(NODES, 16), "time": torch.arange(NODES)}
    edge_tables = {"weight": torch.rand(EDGES, generator=generator) + 0.1}
    source = GraphSource.homogeneous(NODES, EdgeSource(coo=coo), node_tables, edge_tables)
    return Store.build(source, device=device, plan="sharded", progress=False)


def use_table(store: Store) -> Use:
    table, ids = store.node_table("x"), torch.arange(NODES)
    return lambda: table.gather(ids).sum().item()


def use_writes(store: Store) -> Use:
    table, values = store.node_table("x"), torch.ones(NODES, 16)

    def write() -> None:
        table.scatter(torch.arange(NODES), values)
        table.load(values)

    return write


def use_reads(store: Store) -> Use:
    table = store.edge_table("weight")
    return lambda: table.read().sum().item()


def use_sampler(store: Store, **options: Any) -> Use:
    sampler, seeds = NeighborSampler(store, [5, 5], **options), torch.arange(200)
    return lambda: sampler.sample(seeds, 1).num_sampled_nodes


def use_fixed(store: Store) -> Use:
    seeds = torch.arange(200, device=store.device)
    sampler = StaticShapeSampler(NeighborSampler(store, [5]), 200)
    return lambda: sum(n.sum().item() for n in sampler.sample(seeds, 1).num_nodes.values())


def use_reversed(store: Store) -> Use:
    return use_sampler(store.reversed())


def use_walker(store: Store) -> Use:
    walker, starts = RandomWalker(store), torch.arange(200)
    return lambda: walker.walk(starts, 20, 1, p=0.5).nodes.sum().item()


def use_pinsage(store: Store) -> Use:
    sampler = PinSageSampler(store, num_walks=3, walk_length=3, num_neighbors=3)
    return lambda: sampler.sample(torch.arange(100), 1).nodes.sum().item()


def use_negatives(store: Store) -> Use:
    sampler = NegativeSampler(store, avoid_edges=True)
    return lambda: sampler.sample(1000, 1).destination.sum().item()


def use_presample(store: Store) -> Use:
    return lambda: presample(store, [3], torch.arange(100), 50).batches


def use_structure(store: Store) -> Use:
    return lambda: (store.edge_index().sum().item(), store.in_degree().sum().item())


def use_table_rows(store: Store) -> Use:
    rows = TableRows(store.node_table("x"), torch.arange(NODES))
    csc = Csc.from_edge_index(store.edge_index().to(store.device), NODES, NODES)
    rows.addresses()
    return lambda: g_spmm(csc, "copy_u", "sum", rows).sum().item()


def use_tensor(store: Store) -> Use:
    tensor = TableTensor(store, "_N", "x")
    return lambda: tensor[torch.arange(100)].sum().item()


def use_embedding(store: Store) -> Use:
    embedding = Embedding(store, 4, init=torch.nn.init.zeros_)
    optimizer = optim.SparseAdam(embedding)

    def step() -> None:
        optimizer.zero_grad()
        embedding(torch.arange(NODES)).sum().backward()
        optimizer.step()

    return step


def use_arguments(store: Store) -> Use:
    table = store.node_table("x")
    return lambda: (table_argument(table).shape, graph_argument(store).shape)


USES: dict[str, Callable[[Store], Use]] = {
    "gather": use_table,
    "scatter and load": use_writes,
    "read": use_reads,
    "sample": use_sampler,
    "sample by weights": lambda store: use_sampler(store, weights="weight"),
    "sample by times": lambda store: use_sampler(store, node_time="time"),
    "induced": lambda store: use_sampler(store, subgraph="induced"),
    "fixed": use_fixed,
    "reversed": use_reversed,
    "walk": use_walker,
    "pinsage": use_pinsage,
    "negatives": use_negatives,
    "presample": use_presample,
    "structure": use_structure,
    "rows of a table": use_table_rows,
    "tensor": use_tensor,
    "embedding": use_embedding,
    "arguments": use_arguments,
}


def _after_close(device: str) -> None:
    for make_use in USES.values():
        store = make_store(device)
        use = make_use(store)
        use()
        store.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=CLOSED):
                use()
        store.close()


def _close_meanwhile(device: str) -> None:
    for name in USES:
        if name not in SERIAL:
            print(
                name, file=sys.stderr, flush=True
            )  # The last one, if the system ends the process.
            with named_case(name):
                _close_while_others_work(name, device)


def _close_while_others_work(name: str, device: str) -> None:
    store = make_store(device)
    use = USES[name](store)
    expected, count = use(), [0]
    errors: list[BaseException] = []
    began = threading.Barrier(3)

    def loop() -> None:
        began.wait()
        try:
            while True:
                assert use() == expected
                count[0] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for thread in threads:
        thread.start()
    began.wait()
    while count[0] < 2 and not errors:  # in the midst of their work, at any place
        pass
    store.close()
    for thread in threads:
        thread.join()
    for error in errors:
        with pytest.raises(RuntimeError, match=CLOSED):
            raise error
    assert len(errors) == 2


# In processes of their own: what is not told would be killed by the system.
def test_use_after_close(device: torch.device) -> None:
    run_ranks(_after_close, 1, device.type, device=device.type)


SERIAL = ("embedding",)  # whose steps are not for several threads


def test_close_while_other_threads_work(device: torch.device) -> None:
    run_ranks(_close_meanwhile, 1, device.type, device=device.type)


def test_tensors_over_the_memory_keep_it() -> None:
    group = Group.current(device="cpu")
    table = Table.create((1000,), torch.int64, Tiers.all_host(1000), group)
    values = table.as_tensor()
    values.copy_(torch.arange(1000))
    table.close()
    assert int(values.sum()) == 499500


def _close_in_the_midst() -> None:
    store = make_store()
    sampler, seeds = NeighborSampler(store, [5, 5]), torch.arange(200)
    expected = sampler.sample(seeds, 1)
    errors: list[str] = []

    def close_and_allocate(*args: Any) -> torch.Tensor:
        """As the garbage collector might, when memory is allocated for a sample."""
        try:
            store.close()
        except RuntimeError as error:
            errors.append(str(error))
        return torch.empty(*args[:1], dtype=args[1], device=args[2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_result, "empty", close_and_allocate)
        actual = sampler.sample(seeds, 1)
    assert torch.equal(actual.nodes["_N"], expected.nodes["_N"])
    assert errors == ["memory cannot be closed within an operation that uses it"]
    with pytest.raises(RuntimeError, match=CLOSED):
        sampler.sample(seeds, 1)
    with pytest.raises(RuntimeError, match=CLOSED):
        store.node_table("x").gather(seeds)


def test_close_in_the_midst_of_an_operation_of_the_same_thread() -> None:
    run_ranks(_close_in_the_midst, 1)


def _close_twice_at_once() -> None:
    store = make_store()
    began = threading.Barrier(2)

    def close() -> None:
        began.wait()
        store.close()

    with ThreadPoolExecutor(2) as threads:
        for closed in [threads.submit(close) for _ in range(2)]:
            closed.result()
    store.close()


def test_close_by_two_threads() -> None:
    run_ranks(_close_twice_at_once, 1)


def _operation_that_does_not_end(fail: bool) -> str:
    """A rank whose thread stays inside of the memory; an operation of Python's stands for it."""
    group = Group.current(device="cpu", timeout=1 if fail else 60)
    table = Table.create((10, 2), torch.float32, Tiers.all_sharded(10), group)
    table.load(torch.ones(10, 2)) if group.rank == 0 else None
    group.barrier()
    inside, leave = threading.Event(), threading.Event()
    spec = _C.KHopSampler(
        node_types=[("n", 10, _C.IdMapView(leases=table.leases), _C.IdMapView())],
        relations=[],
        expand_all=False,
        disjoint=False,
        induced=False,
        edge_ids=False,
        duplicate_counts=False,
        index_bytes=8,
    )
    cpu = torch.device("cpu")
    arrays = native_result.ResultArrays(
        cpu, torch.int64, edge_ids=False, batch=False, duplicates=False
    )

    def allocate_result(nodes: int, edges: int, offsets: int) -> tuple[int, ...]:
        inside.set()
        leave.wait()
        return arrays(nodes, edges, offsets)

    maps = [torch.full((10,), -1, dtype=torch.int32)]
    node_maps = [_C.NodeMap(words=m, least_bits=24) for m in maps]
    seeds = torch.arange(3)
    launch = _C.Launch(device=-1, stream=0, num_threads=1)

    def work() -> None:
        buffers = Buffers(cpu)
        spec.sample(
            [(0, seeds)], 1, None, None, node_maps, None, None, buffers, allocate_result, launch
        )

    thread = threading.Thread(target=work)
    if group.rank == 0:
        thread.start()
        inside.wait()
        if not fail:
            threading.Timer(0.2, leave.set).start()
    message = ""
    try:
        table.close()
    except RuntimeError as error:
        message = str(error)
    leave.set()
    if group.rank == 0:
        thread.join()
    return message


def test_close_waits_for_operations_of_other_threads() -> None:
    assert run_ranks(_operation_that_does_not_end, 2, False) == ["", ""]


def test_an_operation_that_does_not_end_is_named_on_all_ranks() -> None:
    for message in run_ranks(_operation_that_does_not_end, 2, True):
        assert message == "an operation has not let go of this memory within 0.5 s"


def _fork_in_the_midst() -> None:
    store = make_store()
    use, stop = use_table(store), threading.Event()

    def loop() -> None:
        while not stop.is_set():
            use()

    thread = threading.Thread(target=loop)
    thread.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:  # without the thread, whose work it does not wait for
            store.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    thread.join()
    use()
    store.close()


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    run_ranks(_fork_in_the_midst, 1)
