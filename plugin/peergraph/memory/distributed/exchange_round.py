"""The exchange of rows: the second part of a round, after the ids have been exchanged."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from peergraph.memory.distributed.distributed_table import DistributedTable
from peergraph.memory.distributed.exchange_network import ExchangeNetwork, Transfer
from peergraph.memory.distributed.id_exchange import Counts, RoundPlan, union_of_masks
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.remote_rows import RemoteRows
from peergraph.memory.distributed.round_tags import LOCAL_ROWS, ROWS, round_tag
from peergraph.memory.distributed.row_bytes import select_rows
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.table.packed_rows import pack, packed_offsets, unpack

# Rows of each table: uint8 [rows, row bytes].
Rows = dict[DistributedTable, Tensor]


class ExchangeRound:
    """Transfers the rows of one batch of each rank in two steps (WholeGraph III-D's hierarchy).

    The machine that stores a row sends it once to each machine that needs it, to one rank there,
    which passes it on to the ranks that want it.

    :meth:`send` and :meth:`complete` follow each other; each is collective over all ranks of all
    machines.
    """

    def __init__(
        self,
        plan: RoundPlan,
        layout: Layout,
        network: ExchangeNetwork,
        traffic: TrafficCounter,
        loader: str,
    ) -> None:
        """
        Args:
            plan: the rows, whose tensors are ready in the current stream.
            loader: the loader and the tables that it reads, for errors.
        """
        self.rows: dict[RowSet, RemoteRows] = {s: w.rows for s, w in plan.wanted.items()}
        """This rank's rows."""
        self._plan: RoundPlan | None = plan
        self._layout = layout
        self._network = network
        self._traffic = traffic
        self._loader = loader
        # A rank that has finished serves the others in a thread, which must not launch NCCL's
        # kernels while the main thread may do so: NCCL needs the same order on all ranks.
        self._by_nccl = network.has_nccl and plan.finished == 0
        self._rank = network.group.machines.rank
        self._is_hierarchical = any(len(ranks) > 1 for ranks in network.group.machines.ranks)
        self._device = network.group.device
        self._planned: torch.cuda.Event | None = None
        if self._device.type == "cuda":
            self._planned = torch.cuda.current_stream(self._device).record_event()
        self._sent: Transfer | None = None
        self._completing = threading.Lock()

    @property
    def is_sent(self) -> bool:
        """Whether :meth:`send` has been called."""
        return self._sent is not None or self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the rows have arrived; with NCCL, whether all transfers are in the stream."""
        return self._plan is None

    def send(self) -> None:
        """Begins to send and receive the rows. With NCCL, all of it is launched in the current
        stream, and the host waits for nothing.
        """
        plan = self._plan
        assert plan is not None
        self._wait_for_plan(plan)
        rows = {
            table: table.local.gather_stored(local)
            for row_set, local in plan.requested.items()
            for table in self._layout.named(row_set, union_of_masks(row_set, plan.counts_to))
        }
        num_rows, num_bytes = self._size(plan.counts_to)
        self._traffic.add(rows_sent=num_rows, bytes_sent=num_bytes)
        self._sent = self._transfer(self._split(rows, plan.counts_to), plan.counts_from, ROWS)
        if self._by_nccl:
            self.complete()

    def complete(self) -> None:
        """Waits for the rows, and passes them on to the ranks of this machine that want them.

        Idempotent; several threads may call it at the same time.
        """
        with self._completing:
            plan = self._plan
            if plan is None:
                return
            assert self._sent is not None
            if not self._by_nccl:
                self._wait_for_plan(plan)  # perhaps in another stream than `send`
            rows = self._join(self._received(self._sent, plan.counts_from), plan.counts_from)
            num_rows, num_bytes = self._size(plan.counts_from)
            self._traffic.add(rows_received=num_rows, bytes_received=num_bytes)
            if self._is_hierarchical:
                rows = self._hand_out(rows, plan)
            for row_set, wanted in plan.wanted.items():
                for table in self._layout.named(row_set, wanted.mask):
                    wanted.rows.values[table.name] = rows[table]
            # Frees the rows of other ranks.
            self._plan = self._sent = None

    def _wait_for_plan(self, plan: RoundPlan) -> None:
        """Lets the current stream of a GPU wait for the plan's tensors, and keeps them for it."""
        if self._planned is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._planned)
        for tensor in (*plan.slots.values(), *plan.requested.values()):
            tensor.record_stream(stream)

    def _hand_out(self, fetched: Rows, plan: RoundPlan) -> Rows:
        """Sends the fetched rows to the ranks of this machine; returns this rank's rows."""
        if plan.slots:
            fetched = {
                table: select_rows(rows, plan.slots[table.row_set])
                for table, rows in fetched.items()
            }
        parts = self._split(fetched, plan.counts_for)
        own = parts.pop(self._rank)
        self._traffic.add(local_bytes=sum(p.numel() for part in parts.values() for p in part))
        counts = {r: c for r, c in plan.counts_by_fetcher.items() if r != self._rank}
        received = self._received(self._transfer(parts, counts, LOCAL_ROWS), counts)
        return self._join(received | {self._rank: own}, plan.counts_by_fetcher)

    def _transfer(
        self, parts: Mapping[int, list[Tensor]], counts: Mapping[int, Counts], message: int
    ) -> Transfer:
        """Begins to send matrices to ranks, and to receive the rows that `counts` says."""
        assert self._plan is not None
        return self._network.transfer(
            {rank: pack(part, self._device) for rank, part in parts.items()},
            {rank: packed_offsets(self._sizes(of_rank))[-1] for rank, of_rank in counts.items()},
            round_tag(self._plan.number, message),
            self._loader,
            by_nccl=self._by_nccl,
        )

    def _received(
        self, transfer: Transfer, counts: Mapping[int, Counts]
    ) -> dict[int, Iterable[Tensor]]:
        """Waits for the rows that `counts` says, and returns the matrices of each sender."""
        messages = transfer.wait()
        nothing = torch.empty(0, dtype=torch.uint8, device=self._device)
        return {
            rank: unpack(messages.get(rank, nothing), self._sizes(of_rank))
            for rank, of_rank in counts.items()
        }

    def _split(self, rows: Rows, counts: Mapping[int, Counts]) -> dict[int, list[Tensor]]:
        """Returns the matrices for each rank; `rows` has the ranks' rows one after another."""
        parts: dict[int, list[Tensor]] = {rank: [] for rank in counts}
        for table, matrix in rows.items():
            asking = {
                r: of_rank[table.row_set]
                for r, of_rank in counts.items()
                if table.row_set in of_rank
            }
            pieces = torch.split(matrix, [count for _, count in asking.values()])
            for (rank, (mask, _)), piece in zip(asking.items(), pieces, strict=True):
                if table in self._layout.named(table.row_set, mask):
                    parts[rank].append(piece)
        return parts

    def _join(self, received: Mapping[int, Iterable[Tensor]], counts: Mapping[int, Counts]) -> Rows:
        """Returns the rows of each table; those of the senders follow each other."""
        pieces: dict[DistributedTable, list[Tensor]] = {}
        for rank, of_rank in counts.items():
            for (table, _), piece in zip(self._tables(of_rank), received[rank], strict=True):
                pieces.setdefault(table, []).append(piece)
        return {t: parts[0] if len(parts) == 1 else torch.cat(parts) for t, parts in pieces.items()}

    def _tables(self, counts: Counts) -> Iterator[tuple[DistributedTable, int]]:
        """Yields the tables of a message, in order, and the number of rows of each."""
        for row_set, (mask, count) in counts.items():
            for table in self._layout.named(row_set, mask):
                yield table, count

    def _sizes(self, counts: Counts) -> list[tuple[int, int]]:
        return [(count, table.row_bytes) for table, count in self._tables(counts)]

    def _size(self, counts: Mapping[int, Counts]) -> tuple[int, int]:
        """Returns the number of rows of some messages, and their bytes without padding."""
        sizes = [size for of_rank in counts.values() for size in self._sizes(of_rank)]
        return sum(n for n, _ in sizes), sum(n * row_bytes for n, row_bytes in sizes)
