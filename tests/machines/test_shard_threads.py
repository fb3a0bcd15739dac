"""The threads of the exchange of rows: how they start and end, and what they keep in memory."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.errors import PeerLostError
from peergraph.integration import ExchangeIterator
from peergraph.integration.batch_maker import BatchMaker, PendingBatch
from peergraph.memory import DistributedTable, ExchangeSession, FetchedRows, Group
from peergraph.memory.distributed import exchange_session
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from peergraph.memory.distributed.exchange_round import ExchangeRound
from peergraph.memory.distributed.id_exchange import IdExchange
from peergraph.memory.distributed.load_kernels import load_kernels
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph_pyg.prefetching.thread_state import Modes
from tests.adapters.pyg.graphs import random_data
from tests.machines.hosts import device_of_rank, run_on_hosts
from tests.machines.split_graphs import split_graph
from tests.named_case import named_case

_TIMEOUT_S = 20


def _graph_and_loader(device: str, batches_per_exchange: int = 1) -> tuple[Any, NeighborLoader]:
    """A graph, and a loader of eight batches."""
    _, shared = split_graph(device, timeout=_TIMEOUT_S, batches_per_exchange=batches_per_exchange)
    return shared, NeighborLoader(shared, [4, 3], input_nodes=torch.arange(24), batch_size=3)


def _graph_and_batches(device: str) -> tuple[Any, Any]:
    """A graph, and an iterator of eight batches."""
    shared, loader = _graph_and_loader(device)
    return shared, iter(loader)


def _collected(device: str, in_session: bool) -> None:
    """A rank drops its iterator after two batches; the collector finds it in another thread."""
    shared, batches = _graph_and_batches(device)
    gc.disable()
    next(batches)
    dist.barrier()
    if dist.get_rank() == 0:
        dropped, collected = threading.Event(), threading.Event()
        session = batches._opened.session
        exchange = IdExchange.exchange

        def collect() -> None:
            # `leave` does what it does with NCCL; the rounds themselves use Gloo.
            with patch.object(ExchangeNetwork, "has_nccl", True):
                gc.collect()
            collected.set()

        def collect_and_exchange(ids: IdExchange, *args: Any, **kwargs: Any) -> Any:
            # The round of the last batch that was requested.
            if ids._rounds == 3 and in_session:
                assert dropped.wait(_TIMEOUT_S)
                collect()
            return exchange(ids, *args, **kwargs)

        with patch.object(IdExchange, "exchange", collect_and_exchange):
            next(batches)
            cycle = [batches]
            cycle.append(cycle)  # type: ignore[arg-type]
            del cycle, batches
            dropped.set()
            if not in_session:
                threading.Thread(target=collect, daemon=True).start()
            # The other rank has not called its next `next`.
            assert collected.wait(_TIMEOUT_S)
            assert session.left
        dist.barrier()
    else:
        dist.barrier()
        assert sum(1 for _ in batches) == 7
    start = time.monotonic()
    peergraph_pyg.store_of(shared).close()
    assert time.monotonic() - start < _TIMEOUT_S


@pytest.mark.parametrize("in_session", [True, False])
def test_an_iterator_that_is_collected_in_another_thread(in_session: bool) -> None:
    run_on_hosts(_collected, "ab", "cpu", in_session)


def test_a_collection_while_traffic_is_counted() -> None:
    traffic = TrafficCounter()

    class Counting(int):
        def __radd__(self, other: int) -> int:
            traffic.add(batches=1)
            return int(self) + other

    thread = threading.Thread(target=lambda: traffic.add(ids_sent=Counting(2)), daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    assert not thread.is_alive()
    assert (traffic.total.batches, traffic.total.ids_sent) == (1, 2)


def _requested_meanwhile(device: str) -> None:
    """The thread of batches completes a round while the loop requests others: whenever a function
    of the session returns.
    """
    shared, _ = _graph_and_batches(device)
    store = peergraph_pyg.store_of(shared)
    assert store.exchange is not None
    requested: list[FetchedRows] = []

    def request(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != exchange_session.__file__:
            return None
        if event == "return":
            requested.append(session.request([]))
        return request

    with store.exchange.open("batches") as session:
        fetched = session.fetch([(store.node_table("x"), torch.arange(60))])
        trace = sys.gettrace()
        sys.settrace(request)
        try:
            fetched.complete()
        finally:
            sys.settrace(trace)
    session.join()
    assert requested
    assert all(f.is_complete for f in requested)
    store.close()


def test_requests_while_a_round_is_completed() -> None:
    run_on_hosts(_requested_meanwhile, "ab", "cpu")


_start_thread = threading.Thread.start


def _cannot_start(thread: threading.Thread) -> None:
    if thread.name.startswith("peergraph exchange"):
        raise RuntimeError("can't start new thread")
    _start_thread(thread)


def _cannot_use_stream(*_: Any) -> None:
    raise RuntimeError("CUDA error: out of memory")


# The owner of a function, its name, the function in place of it, and the error.
_FAILURES = (
    (threading.Thread, "start", _cannot_start, "can't start new thread"),
    (exchange_session, "on_thread_stream", _cannot_use_stream, "CUDA error: out of memory"),
)


def _no_thread(device: str) -> None:
    """The thread of rank 0's session fails, with and without batches of this rank. The other rank
    learns it from the closed connection: its error is another one if it has waited in vain.
    """
    for (owner, name, failure, message), has_batch in product(_FAILURES, (True, False)):
        with named_case(message, has_batch):
            shared, _ = _graph_and_batches(device)
            store = peergraph_pyg.store_of(shared)
            assert store.exchange is not None
            session = store.exchange.open("a batch")
            requests = [(store.node_table("x"), torch.arange(60))]
            # Gloo's connections are complete on both ranks.
            dist.barrier()
            if dist.get_rank() == 0:
                with patch.object(owner, name, failure):
                    if has_batch:
                        with pytest.raises(RuntimeError, match=message):
                            session.fetch(requests)
                    session.leave()
                    with pytest.raises(RuntimeError, match=message):
                        session.join()
                for thread in session._threads:
                    if thread.ident is not None:
                        thread.join(_TIMEOUT_S)
                    assert not thread.is_alive()
            else:
                with pytest.raises(PeerLostError, match="rank 0 of .* is lost or has left"):
                    session.fetch(requests)
            dist.barrier()
            error = RuntimeError if dist.get_rank() == 0 else PeerLostError
            with pytest.raises(error):
                store.close()


def test_a_thread_that_fails_at_its_start() -> None:
    run_on_hosts(_no_thread, "ab", "cpu")


def _freed(device: str, batches_per_exchange: int) -> None:
    """Received rows are freed once the last batch of their round has been made. A thread makes it
    one batch ahead of the loop.
    """
    shared, loader = _graph_and_loader(device, batches_per_exchange)
    received: dict[int, list[weakref.ref[torch.Tensor]]] = {}
    complete = ExchangeRound.complete

    def recording_complete(exchange_round: ExchangeRound) -> None:
        plan = exchange_round._plan
        complete(exchange_round)
        if plan is not None:
            rows = exchange_round.rows.values()
            received[plan.number] = [weakref.ref(v) for r in rows for v in r.values.values()]

    gc.disable()
    with patch.object(ExchangeRound, "complete", recording_complete):
        for number, batch in enumerate(loader, 1):
            del batch
            assert len(received) >= number // batches_per_exchange
            assert all(received.values())
            alive = [n for n, refs in received.items() if any(r() is not None for r in refs)]
            assert alive in ([], [number // batches_per_exchange])
    assert len(received) == -(-8 // batches_per_exchange)
    peergraph_pyg.store_of(shared).close()


@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_rows_of_batches_are_freed(batches_per_exchange: int) -> None:
    run_on_hosts(_freed, "ab", "cpu", batches_per_exchange)


def _freed_after_errors(device: str, batches_per_exchange: int) -> None:
    """If a batch cannot be made, or has wrong ids, its rows are freed when its error is."""
    shared, _ = _graph_and_loader(device, batches_per_exchange)
    store = peergraph_pyg.store_of(shared)
    table = store.node_table("x")
    requested: list[weakref.ref[FetchedRows]] = []
    request = ExchangeSession.request

    def recording_request(session: ExchangeSession, *batches: Any) -> FetchedRows:
        fetched = request(session, *batches)
        requested.append(weakref.ref(fetched))
        return fetched

    def make_batch(ids: torch.Tensor, fetched: FetchedRows) -> torch.Tensor:
        if 3 in ids:
            raise ValueError("of one batch")
        return table.gather(ids)

    # 60 is out of range.
    samples = [torch.tensor([i, i + 8]) for i in (0, 3, 52, 1, 2, 51, 3, 52)]
    errors: list[type[Exception]] = []
    gc.collect()
    gc.disable()
    with patch.object(ExchangeSession, "request", recording_request):
        batches = ExchangeIterator(
            store, iter(samples), lambda ids: [(table, ids)], make_batch, "batches"
        )
        for _ in samples:
            try:
                next(batches)
            except (IndexError, ValueError) as error:
                errors.append(type(error))
        assert next(batches, None) is None
    assert errors == [ValueError, IndexError] * 2
    batches._opened.session.join()  # type: ignore[union-attr]
    assert [fetched() for fetched in requested] == [None] * -(-8 // batches_per_exchange)
    gc.enable()
    store.close()


@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_rows_of_batches_with_errors_are_freed(batches_per_exchange: int) -> None:
    run_on_hosts(_freed_after_errors, "ab", "cpu", batches_per_exchange)


def _made_ahead(device: str) -> None:
    """The thread makes one batch ahead of the loop, also if rounds have several batches."""
    shared, loader = _graph_and_loader(device, batches_per_exchange=3)
    begun, begin = [], BatchMaker.begin

    def recording_begin(maker: BatchMaker, batch: PendingBatch) -> None:
        if not batch.is_begun:
            begun.append(batch)
        begin(maker, batch)

    with patch.object(BatchMaker, "begin", recording_begin):
        for number, _ in enumerate(loader, 1):
            assert len(begun) == min(number + 1, 8)
    peergraph_pyg.store_of(shared).close()


def test_batches_are_made_one_ahead() -> None:
    run_on_hosts(_made_ahead, "ab", "cpu")


def _request_after_an_error(device: str) -> None:
    """An error ends the session in its thread before the loop requests the next batch."""
    shared, _ = _graph_and_batches(device)
    store = peergraph_pyg.store_of(shared)
    assert store.exchange is not None
    session = store.exchange.open("batches")
    session._end(PeerLostError("rank 9 is lost"))
    for request in (session.request, session.fetch):
        with pytest.raises(PeerLostError, match="rank 9"):
            request([])
    with pytest.raises(PeerLostError, match="rank 9"):
        store.close()


def test_a_request_raises_the_error_that_ended_the_session() -> None:
    run_on_hosts(_request_after_an_error, "ab", "cpu")


def _loaded(device: str) -> None:
    """What a GPU's exchange does when it is made reads all tables, and changes nothing."""
    shared, batches = _graph_and_batches(device)
    store = peergraph_pyg.store_of(shared)
    exchange = store.exchange
    assert exchange is not None
    tables = [store.node_table("x"), store.edge_table("edge_attr", store.edge_types[0])]
    assert all(isinstance(table, DistributedTable) for table in tables)
    before = store.network_traffic()
    load_kernels(exchange.open, tables, exchange.streams.rows)  # type: ignore[arg-type]
    traffic = store.network_traffic() - before
    assert traffic.batches > 0
    assert traffic.rows_received > 0
    data = random_data()
    for batch in batches:
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    store.close()


def _loaded_with_hot_rows(device: str) -> None:
    """The hot rows are those of the first ids."""
    group = Group.current(device=device_of_rank(device), timeout=60)
    shared = peergraph_pyg.share(
        random_data(40_000) if group.machines.is_first_rank else None,
        device=group.device,
        machines="shard",
        hot_ratio=0.5,
        hotness=torch.arange(40_000, 0, -1),
    )
    store = peergraph_pyg.store_of(shared)
    table, exchange = store.node_table("x"), store.exchange
    assert isinstance(table, DistributedTable)
    assert exchange is not None
    before = store.network_traffic()
    load_kernels(exchange.open, [table], exchange.streams.rows)
    assert (store.network_traffic() - before).rows_received > 1000
    store.close()


def test_loading_kernels_reads_rows_of_other_machines() -> None:
    run_on_hosts(_loaded_with_hot_rows, "ab", "cpu")


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_loading_kernels_reads_all_tables_and_changes_nothing(hosts: str) -> None:
    run_on_hosts(_loaded, hosts, "cpu")


def _failing_modes(device: str) -> None:
    """On one rank, the thread that makes batches cannot start. This rank gets its error and leaves
    the loop; the other rank gets all its batches.
    """
    shared, loader = _graph_and_loader(device)
    entered = Modes.entered

    def fail_in_thread_of_batches(modes: Modes) -> Any:
        if threading.current_thread().name == "peergraph batches":
            raise ValueError("of the modes")
        return entered(modes)

    if dist.get_rank() == 0:
        with patch.object(Modes, "entered", fail_in_thread_of_batches):
            batches = iter(loader)
            with pytest.raises(ValueError, match="of the modes"):
                next(batches)
            batches.close()
    else:
        assert sum(1 for _ in loader) == 8
    peergraph_pyg.store_of(shared).close()


def test_the_thread_that_makes_batches_cannot_start_on_one_rank() -> None:
    run_on_hosts(_failing_modes, "ab", "cpu")
