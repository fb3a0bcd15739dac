"""Training beside the exchange of rows, and each of them alone: the timed parts of
exchange_overlap.py.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from harness.ranks import synchronize
from inputs.arrays import batch_nodes
from inputs.graph_source import make_source
from inputs.graphs import GraphSpec
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NeighborLoader
from training import data_of, make_model

import peergraph_pyg
from peergraph.memory import DistributedTable, Group, Machines
from peergraph.memory.distributed.exchange_streams import in_stream
from peergraph.store import Store

# Rounds of the exchange before the timed ones.
_WARM_UP = 3
# Rounds after the timed ones: during the last timed steps, rows of the next round and ids of the
# one after it are exchanged.
_REST = 2


@dataclass
class Epoch:
    """Of one rank: the time of a step and its CPU time (all threads), in seconds."""

    seconds: float
    cpu_seconds: float


@dataclass
class Recorded:
    """The mini-batches of an epoch with rows that are split over machines.

    Args:
        ids: the nodes of each mini-batch of this rank.
        sent: the bytes of a step that this rank sends to each rank.
        received: the bytes of a step that it receives from each rank.
        bytes_sent: the most bytes of a step that a rank sends.
        cold_rows: of all machines and rounds, the distinct rows that a machine does not have.
        over_cold: the bytes that all ranks send, over the bytes of these rows.
    """

    ids: list[Tensor]
    sent: list[int]
    received: list[int]
    bytes_sent: float
    cold_rows: int
    over_cold: float


class Training:
    """Trains on one rank, by a store that is whole on each machine or split over them."""

    def __init__(self, args: argparse.Namespace, spec: GraphSpec, group: Group) -> None:
        self._args = args
        self._group = group
        self._device = group.device
        node_range = spec.node_range(group.rank, group.world_size)
        self._source = make_source(spec, node_range, group.device, args.columns, labels=True)
        self.whole = self.build(machines="replicate")
        torch.manual_seed(0)
        widths = [args.columns, *[args.hidden] * (len(args.fanout) - 1), spec.num_classes]
        self._plain = make_model(widths, "accelerated", args.model).to(group.device)
        self.parameters = sum(p.numel() for p in self._plain.parameters())
        machines, cpu = group.machines, torch.device("cpu")
        place = machines.rank, machines.world_size
        self._warm_up = _WARM_UP * args.batches_per_exchange
        steps = range(self._warm_up + args.steps + _REST * args.batches_per_exchange)
        self._seeds = torch.cat([batch_nodes(spec, i, args.batch, *place, cpu) for i in steps])

    def build(self, **options: Any) -> Store:
        """A store of the graph on each machine. Collective."""
        return Store.build(self._source, group=self._group, **options)

    def split(self, hot_ratio: float) -> Store:
        """A store with rows that are split over the machines. Collective."""
        batches = self._args.batches_per_exchange
        return self.build(machines="shard", hot_ratio=hot_ratio, batches_per_exchange=batches)

    def epoch(self, store: Store, is_ddp: bool) -> Epoch:
        """Trains for an epoch."""
        model: nn.Module = self._plain
        if is_ddp:
            ids = None if self._device.type == "cpu" else [self._device.index]
            model = DistributedDataParallel(model, device_ids=ids)
        optimizer = torch.optim.Adam(model.parameters())
        return self._timed(self._batches(store), lambda batch: train(model, optimizer, batch))

    def exchange(self, store: Store, recorded: Recorded) -> Epoch:
        """Exchanges rows of the recorded mini-batches: their ids, the rows, and within machines."""
        table, exchange = store.node_table("x"), store.exchange
        assert exchange is not None
        opened = exchange.open("recorded mini-batches")
        per_round = self._args.batches_per_exchange
        rounds = [recorded.ids[i : i + per_round] for i in range(0, len(recorded.ids), per_round)]

        def fetch(batches: Sequence[Tensor]) -> None:
            session.fetch(*([(table, ids)] for ids in batches)).wait()

        with opened as session, in_stream(exchange.streams.rows):
            timing = timed(rounds, fetch, _WARM_UP, self._args.steps // per_round, self._device)
        return Epoch(timing.seconds / per_round, timing.cpu_seconds / per_round)

    def wire(self, recorded: Recorded, is_ddp: bool) -> Epoch:
        """Sends as many bytes between ranks of different machines as a step does, and nothing else:
        rows, ids and headers, and with DDP gradients of the model.
        """
        outbox = torch.ones(sum(recorded.sent), dtype=torch.uint8, device=self._device)
        inbox = torch.empty(sum(recorded.received), dtype=torch.uint8, device=self._device)
        gradients = torch.zeros(self.parameters, device=self._device)

        def transfer(_: int) -> None:
            dist.all_to_all_single(inbox, outbox, recorded.received, recorded.sent)
            if is_ddp:
                dist.all_reduce(gradients)

        return self._timed(range(self._warm_up + self._args.steps), transfer)

    def record(self, store: Store) -> Recorded:
        """Counts the bytes of an epoch, and the rows that it needs. Collective."""
        table, machines = store.node_table("x"), self._group.machines
        assert isinstance(table, DistributedTable)
        before = store.network_traffic()
        ids = [batch.n_id for batch in self._batches(store)]
        traffic = store.network_traffic() - before
        cold, per_round = 0, self._args.batches_per_exchange
        remote_rows = [batch[table.is_remote(batch)].cpu() for batch in ids]
        for first in range(0, len(ids), per_round):
            remote = torch.cat(remote_rows[first : first + per_round])
            of_machine = torch.cat(self._group.all_gather(remote))
            cold += of_machine.unique().numel() if machines.is_first_rank else 0
        cold_rows = round(total(cold))
        assert cold_rows == total(traffic.rows_received), (cold_rows, traffic)
        bytes_sent = traffic.bytes_sent / len(ids)
        to = partners(machines)
        sent = [round(bytes_sent / len(to)) * (rank in to) for rank in range(machines.world_size)]
        everyone: list[Any] = [None] * machines.world_size
        dist.all_gather_object(everyone, sent)
        received = [other[machines.rank] for other in everyone]
        over_cold = total(traffic.bytes_sent) / (cold_rows * table.row_bytes)
        return Recorded(ids, sent, received, most(bytes_sent), cold_rows, over_cold)

    def _batches(self, store: Store) -> Iterator[Any]:
        torch.manual_seed(0)
        loader = NeighborLoader(
            data_of(store), self._args.fanout, input_nodes=self._seeds, batch_size=self._args.batch
        )
        # Sampled by a thread, as batches of a split store are.
        return iter(peergraph_pyg.prefetch(loader, self._args.depth))

    def _timed(self, steps: Iterable[Any], work: Callable[[Any], None]) -> Epoch:
        return timed(steps, work, self._warm_up, self._args.steps, self._device)


def timed(
    steps: Iterable[Any],
    work: Callable[[Any], None],
    warm_up: int,
    count: int,
    device: torch.device,
) -> Epoch:
    """Runs all steps. The first `warm_up` of them are not timed, the next `count` are.

    On a CPU the median step is taken. On a GPU, steps overlap: the host waits for the GPU before
    the first timed step and after the last one, and the mean is taken.
    """
    most(0)  # all ranks begin together
    ends, cpu = [], []
    for number, step in enumerate(steps, 1):
        work(step)
        if number in (warm_up, warm_up + count):
            synchronize(device)
        ends.append(time.perf_counter())
        cpu.append(time.process_time())
    first, last = warm_up - 1, warm_up + count - 1
    if device.type == "cpu":
        seconds = statistics.median(b - a for a, b in pairwise(ends[first : last + 1]))
    else:
        seconds = (ends[last] - ends[first]) / count
    return Epoch(seconds, (cpu[last] - cpu[first]) / count)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    """One step."""
    optimizer.zero_grad()
    out: Tensor = model(batch.x, batch)[: batch.batch_size]
    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
    optimizer.step()


def partners(machines: Machines) -> list[int]:
    """The ranks of other machines that this rank sends rows to, equally many to each.

    A machine's row number t leaves it by its rank t modulo its number of ranks, and comes to that
    rank t modulo their number of another machine.
    """
    mine = machines.local_ranks
    number = mine.index(machines.rank)
    return [
        rank
        for index, ranks in enumerate(machines.ranks)
        for position, rank in enumerate(ranks)
        if index != machines.index and (position - number) % gcd(len(ranks), len(mine)) == 0
    ]


def most(value: float) -> float:
    """The most of all ranks'. Collective."""
    reduced = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(reduced, dist.ReduceOp.MAX)
    return reduced.item()


def total(value: float) -> float:
    """The sum of all ranks'. Collective."""
    reduced = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(reduced)
    return reduced.item()


def hot_ratio_for(share: float, internal: Tensor, num_rows: int) -> float:
    """The share of hot rows with which a batch has some share of cold rows.

    Args:
        share: the share of a batch's rows that is cold; above 1 no row is hot.
        internal: the rows of batches, by their place in the order from hot to cold.
    """
    ordered = internal.sort().values
    position = round((1 - min(1.0, share)) * (ordered.numel() - 1))
    return 0.0 if share >= 1 else int(ordered[position]) / num_rows


def cold_share(table: DistributedTable, ids: Sequence[Tensor]) -> tuple[float, Tensor]:
    """The share of cold rows in some batches, and all rows by their place from hot to cold."""
    internal = torch.cat([table.row_set.internal_row(batch) for batch in ids])
    return float((internal >= table.row_set.split.hot).double().mean()), internal
