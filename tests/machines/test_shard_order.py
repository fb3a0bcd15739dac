"""The order in which loaders exchange rows that are split over machines."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch_geometric.loader import NeighborLoader

import peergraph_pyg
from peergraph.errors import PeerLostError
from peergraph.memory import DistributedTable, ExchangeSession, FetchedRows
from peergraph.memory.distributed import exchange_network
from tests.machines.hosts import run_on_hosts
from tests.machines.split_graphs import split_graph
from tests.named_case import named_case
from tests.places import cpu_and_gpus

_BATCH = 3


def _loader(graph: Any, num_batches: int) -> NeighborLoader:
    seeds = torch.arange(_BATCH * num_batches)
    return NeighborLoader(graph, [4, 3], input_nodes=seeds, batch_size=_BATCH)


def _numbers_of_batches(device: str, batches_per_exchange: int) -> None:
    data, shared = split_graph(device, batches_per_exchange=batches_per_exchange)
    table = peergraph_pyg.store_of(shared).node_table("x")
    assert isinstance(table, DistributedTable)
    for counts in product(range(5), repeat=2):
        with named_case(counts):
            count = counts[dist.get_rank()]
            batches = list(_loader(shared, count))
            assert len(batches) == count
            for batch in batches:
                assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    for steps in product(range(1, 5), repeat=2):
        with named_case("left after", steps):
            mine = steps[dist.get_rank()]
            for number, batch in enumerate(_loader(shared, 4), 1):
                assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
                if number == mine:
                    break
            # The rank that has left answers the other one meanwhile.
            rows = torch.arange(dist.get_rank(), 60, 7)
            assert torch.equal(table.collective_read(rows).cpu(), data.x[rows])
    peergraph_pyg.store_of(shared).close()


@pytest.mark.parametrize("batches_per_exchange", [1, 2, 3])
def test_any_numbers_of_batches_and_of_steps(batches_per_exchange: int) -> None:
    run_on_hosts(_numbers_of_batches, "ab", "cpu", batches_per_exchange)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("batches_per_exchange", [1, 2])
def test_any_numbers_of_batches_and_of_steps_on_gpus(batches_per_exchange: int) -> None:
    run_on_hosts(_numbers_of_batches, "ab", "cuda", batches_per_exchange, device="cuda")


def _calls_by_next(device: str, batches_per_exchange: int, expected: dict[int, list[str]]) -> None:
    """Rank 1 has fewer batches. It requests and sends its rounds at the same `next` as rank 0."""
    _, shared = split_graph(device, batches_per_exchange=batches_per_exchange)
    calls: defaultdict[int, list[str]] = defaultdict(list)
    returned = 0
    requested: list[FetchedRows] = []
    request, start_transfer = ExchangeSession.request, FetchedRows.start_transfer

    def recording_request(session: ExchangeSession, *batches: Any) -> FetchedRows:
        fetched = request(session, *batches)
        calls[returned].append(f"request {len(requested)}")
        requested.append(fetched)
        return fetched

    def recording_start_transfer(fetched: FetchedRows) -> Any:
        if threading.current_thread() is threading.main_thread():
            event = f"send {requested.index(fetched)}"
            if not any(event in of_next for of_next in calls.values()):
                calls[returned].append(event)
        return start_transfer(fetched)

    with (
        patch.object(ExchangeSession, "request", recording_request),
        patch.object(FetchedRows, "start_transfer", recording_start_transfer),
    ):
        for _ in _loader(shared, 5 if dist.get_rank() == 0 else 3):
            returned += 1
    mine = {
        number: [c for c in of_next if int(c.split()[1]) < len(requested)]
        for number, of_next in expected.items()
    }
    assert len(requested) == -(-returned // batches_per_exchange)
    assert dict(calls) == {number: of_next for number, of_next in mine.items() if of_next}
    peergraph_pyg.store_of(shared).close()


@pytest.mark.parametrize(
    ("batches_per_exchange", "calls"),
    [
        (
            1,
            {
                0: ["request 0", "request 1", "request 2", "send 0", "send 1"],
                1: ["request 3", "send 2"],
                2: ["request 4", "send 3"],
                3: ["send 4"],
            },
        ),
        (2, {0: ["request 0", "request 1", "send 0", "send 1"], 1: ["request 2"], 2: ["send 2"]}),
        (3, {0: ["request 0", "request 1", "send 0", "send 1"]}),
    ],
)
def test_ids_and_rows_travel_before_a_batch_is_returned(
    batches_per_exchange: int, calls: dict[int, list[str]]
) -> None:
    run_on_hosts(_calls_by_next, "ab", "cpu", batches_per_exchange, calls)


def _wrong_requests(device: str) -> None:
    """A wrong request concerns its rank only; the other one gets its rows."""
    data, shared = split_graph(device)
    table = peergraph_pyg.store_of(shared).node_table("x")
    assert isinstance(table, DistributedTable)
    exchange = peergraph_pyg.store_of(shared).exchange
    assert exchange is not None
    rank = dist.get_rank()
    with exchange.open("wrong ids on one rank") as session:
        ids = torch.tensor([60 if rank == 0 else 59], device=table.device)
        fetched = session.request([(table, ids)])
        if rank == 0:
            with pytest.raises(IndexError, match="60") as raised:
                fetched.send()
            assert raised.value.__context__ is None
        else:
            fetched.send()
            with fetched.reading():
                assert torch.equal(table.gather(ids).cpu(), data.x[ids.cpu()])
        ids = torch.arange(60, device=table.device)
        with session.fetch([(table, ids)]).reading():
            assert torch.equal(table.gather(ids).cpu(), data.x)
        # The other batches of the round get their rows.
        batches = [torch.tensor(n, device=table.device) for n in ([59, 3], [60 - rank], [], [58])]
        fetched = session.request(*([(table, ids)] for ids in batches))
        fetched.start_transfer()
        assert list(fetched.request_errors) == ([1] if rank == 0 else [])
        with fetched.reading():
            for position, ids in enumerate(batches):
                if position not in fetched.request_errors:
                    assert torch.equal(table.gather(ids.long()).cpu(), data.x[ids.long().cpu()])
    peergraph_pyg.store_of(shared).close()


@cpu_and_gpus(2)
def test_wrong_requests_of_one_rank(device_type: str) -> None:
    run_on_hosts(_wrong_requests, "ab", device_type, device=device_type)


def _failing_batches(device: str, batches_per_exchange: int) -> None:
    """The error of one rank's batch concerns this batch only."""
    data, shared = split_graph(device, batches_per_exchange=batches_per_exchange)
    rank = dist.get_rank()

    def transform(batch: Any) -> Any:
        if rank == 0 and 3 in batch.input_id:
            raise ValueError("of one batch")
        return batch

    seeds = torch.arange(12)
    loader = NeighborLoader(
        shared, [4, 3], input_nodes=seeds, batch_size=_BATCH, transform=transform
    )
    batches, errors = iter(loader), 0
    for number in range(4):
        if rank == 0 and number == 1:
            with pytest.raises(ValueError, match="of one batch"):
                next(batches)
            errors += 1
        else:
            batch = next(batches)
            assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    assert next(batches, None) is None
    assert errors == int(rank == 0)
    peergraph_pyg.store_of(shared).close()


@pytest.mark.parametrize("batches_per_exchange", [1, 3])
def test_errors_of_one_batch(batches_per_exchange: int) -> None:
    run_on_hosts(_failing_batches, "aab", "cpu", batches_per_exchange)


def _dies_in_its_loop(graph: Any) -> None:
    for number, _ in enumerate(_loader(graph, 6)):
        if dist.get_rank() == 1 and number == 2:
            os._exit(1)


def _lost_rank(device: str) -> None:
    """A rank dies in its loop; the others name a rank that is lost."""
    _, shared = split_graph(device)
    start = time.monotonic()
    with pytest.raises(PeerLostError, match="rank"):
        _dies_in_its_loop(shared)
    assert time.monotonic() - start < 30


def test_a_lost_rank() -> None:
    run_on_hosts(_lost_rank, "aabb", "cpu", may_die=[1])


def _long_messages(device: str) -> None:
    """Messages of ids that are longer than the room that their receiver has for a first part."""
    data, shared = split_graph(device)
    table = peergraph_pyg.store_of(shared).node_table("x")
    assert isinstance(table, DistributedTable)
    for first_words in (10, 17, 25):
        with named_case(first_words), patch.object(exchange_network, "_FIRST_WORDS", first_words):
            # Different numbers of rows: some messages are short enough.
            ids = torch.arange(0, 60, 1 + 5 * dist.get_rank())
            assert torch.equal(table.collective_read(ids), data.x[ids])
    peergraph_pyg.store_of(shared).close()


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_long_messages_of_ids(hosts: str) -> None:
    run_on_hosts(_long_messages, hosts, "cpu")


def _rows_of_one_machine(device: str) -> None:
    """Ranks of a machine break out of a loop in which they fetch rows for each other."""
    data, shared = split_graph(device)
    for number, batch in enumerate(_loader(shared, 6)):
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
        if number == dist.get_rank():
            break
    # The last rank answers from the beginning, and fetches rows for its machine.
    is_last = dist.get_rank() == dist.get_world_size() - 1
    for batch in _loader(shared, 0 if is_last else 4):
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    peergraph_pyg.store_of(shared).close()


@cpu_and_gpus(4)
@pytest.mark.parametrize("hosts", ["aabb", "abbb"])
def test_ranks_of_a_machine_leave_after_different_steps(device_type: str, hosts: str) -> None:
    run_on_hosts(_rows_of_one_machine, hosts, device_type, device=device_type)
