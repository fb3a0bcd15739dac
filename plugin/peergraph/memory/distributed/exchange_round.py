"""The exchange of rows: the second part of a round, after the ids have been exchanged."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from peergraph.memory.distributed.exchange_network import ExchangeNetwork, Transfer
from peergraph.memory.distributed.id_exchange import RoundPlan, union_of_masks
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.remote_rows import RemoteRows
from peergraph.memory.distributed.round_tags import LOCAL_ROWS, ROWS, round_tag
from peergraph.memory.distributed.row_bytes import select_rows
from peergraph.memory.distributed.row_messages import RowMessages, Rows
from peergraph.memory.distributed.row_set import RowSet


class ExchangeRound:
    """Transfers the rows of a round in two steps (WholeGraph III-D's hierarchy).

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
        """Gathers the rows for other machines, in the current stream.

        Args:
            plan: the rows, whose tensors are ready in the current stream.
            loader: the loader and the tables that it reads, for errors.
        """
        self.rows: dict[RowSet, RemoteRows] = {s: w.rows for s, w in plan.requests.items()}
        """This rank's rows."""
        self._plan: RoundPlan | None = plan
        self._layout = layout
        self._network = network
        self._traffic = traffic
        self._loader = loader
        # A rank that has finished serves the others in a thread, which must not launch NCCL's
        # kernels while the main thread may do so: NCCL needs the same order on all ranks.
        self._by_nccl = network.has_nccl and plan.finished == 0
        self._is_hierarchical = any(len(ranks) > 1 for ranks in network.group.machines.ranks)
        self._device = network.group.device
        self._sent: Transfer | None = None
        self._completing = threading.Lock()
        self._outgoing = RowMessages(layout, plan.counts_to)
        self._incoming = RowMessages(layout, plan.counts_from)
        self._outbox: Tensor | None = self._outgoing.pack(
            self._gather_requested_rows(plan), self._device
        )
        self._planned: torch.cuda.Event | None = None
        if self._device.type == "cuda":
            self._planned = torch.cuda.current_stream(self._device).record_event()

    @property
    def is_sent(self) -> bool:
        """Whether :meth:`send` has been called."""
        return self._outbox is None

    @property
    def is_complete(self) -> bool:
        """Whether the rows have arrived; with NCCL, whether all transfers are in the stream."""
        return self._plan is None

    def send(self) -> None:
        """Begins to send and receive the rows. With NCCL, all of it is launched in the current
        stream, and the host waits for nothing.
        """
        plan, outbox = self._plan, self._outbox
        assert plan is not None and outbox is not None
        self._use_in_current_stream(outbox, *plan.slots.values())
        outgoing, incoming = self._outgoing, self._incoming
        self._traffic.add(rows_sent=outgoing.num_rows, bytes_sent=outgoing.unpadded_bytes)
        self._sent = self._network.transfer(
            outbox,
            outgoing.bytes_by_rank,
            incoming.bytes_by_rank,
            round_tag(plan.number, ROWS),
            self._loader,
            by_nccl=self._by_nccl,
        )
        self._outbox = None
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
                # The caller may work on another stream than the caller of `send`.
                self._use_in_current_stream(*plan.slots.values())
            rows = self._incoming.unpack(self._sent.wait())
            num_rows, num_bytes = self._incoming.num_rows, self._incoming.unpadded_bytes
            self._traffic.add(rows_received=num_rows, bytes_received=num_bytes)
            if self._is_hierarchical:
                rows = self._hand_out(rows, plan)
            for row_set, requested in plan.requests.items():
                for table in self._layout.named(row_set, requested.mask):
                    requested.rows.values[table.name] = rows[table]
            # Frees the rows of other ranks.
            self._plan = self._sent = None

    def _gather_requested_rows(self, plan: RoundPlan) -> Rows:
        """Returns the rows that other machines have requested."""
        return {
            table: table.local.gather_stored(local)
            for row_set, local in plan.requested.items()
            for table in self._layout.named(row_set, union_of_masks(row_set, plan.counts_to))
        }

    def _hand_out(self, fetched: Rows, plan: RoundPlan) -> Rows:
        """Sends the fetched rows to the ranks of this machine; returns this rank's rows."""
        if plan.slots:
            fetched = {
                table: select_rows(rows, plan.slots[table.row_set])
                for table, rows in fetched.items()
            }
        outgoing = RowMessages(self._layout, plan.counts_for)
        incoming = RowMessages(self._layout, plan.counts_by_fetcher)
        own = outgoing.bytes_by_rank[self._network.group.machines.rank]
        self._traffic.add(local_bytes=sum(outgoing.bytes_by_rank.values()) - own)
        transfer = self._network.transfer(
            outgoing.pack(fetched, self._device),
            outgoing.bytes_by_rank,
            incoming.bytes_by_rank,
            round_tag(plan.number, LOCAL_ROWS),
            self._loader,
            by_nccl=self._by_nccl,
        )
        return incoming.unpack(transfer.wait())

    def _use_in_current_stream(self, *tensors: Tensor) -> None:
        """Lets the current stream of a GPU wait for the plan and for the rows to be sent, and keeps
        tensors of the round until the stream has used them.
        """
        if self._planned is None:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._planned)
        for tensor in tensors:
            tensor.record_stream(stream)
