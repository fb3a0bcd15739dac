"""The exchange of the ids of wanted rows: the first part of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from peergraph.errors import CollectiveMismatchError
from peergraph.memory.distributed.exchange_network import ExchangeNetwork
from peergraph.memory.distributed.layout import Layout
from peergraph.memory.distributed.network_traffic import TrafficCounter
from peergraph.memory.distributed.round_message import WORD_BYTES, RoundMessage
from peergraph.memory.distributed.round_tags import IDS, LOCAL_IDS, round_tag
from peergraph.memory.distributed.routes import numbers_of, split_keys
from peergraph.memory.distributed.row_messages import Counts
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.distributed.wanted_rows import WantedRows


@dataclass
class RoundPlan:
    """The rows that this rank sends and receives in a round.

    Attributes:
        number: the number of the round.
        requests: the rows that this rank wants for its batches.
        finished: the number of ranks of all machines that have no more batches.
        counts_by_fetcher: what each rank of this machine fetches for this rank.
        counts_for: what this rank fetches for each rank of this machine.
        counts_from: what this rank fetches from each partner.
        counts_to: what each partner fetches from this rank.
        slots: the positions of the rows for the ranks of this machine among the rows that this rank
            fetches, rank after rank. If the machine has one rank, its rows are the fetched ones.
        requested: the local rows that this rank sends, partner after partner.
    """

    number: int
    requests: Mapping[RowSet, WantedRows]
    finished: int = 0
    counts_by_fetcher: dict[int, Counts] = field(default_factory=dict)
    counts_for: dict[int, Counts] = field(default_factory=dict)
    counts_from: dict[int, Counts] = field(default_factory=dict)
    counts_to: dict[int, Counts] = field(default_factory=dict)
    slots: dict[RowSet, Tensor] = field(default_factory=dict)
    requested: dict[RowSet, Tensor] = field(default_factory=dict)


class IdExchange:
    """Exchanges ids of rows, round by round: first within each machine, then between machines.

    A rank sends each rank of its machine the ids of the rows that this rank fetches for it. That
    rank merges the ids, and requests each row once from the rank of another machine that sends it.
    Both messages also say how many ranks have finished. All of it goes through host memory.
    """

    def __init__(
        self, layout: Layout, network: ExchangeNetwork, traffic: TrafficCounter, loader: str
    ) -> None:
        """
        Args:
            loader: the loader and the tables that it reads, as text; the same on all ranks.
        """
        self._layout = layout
        self._network = network
        self._traffic = traffic
        self._loader = loader
        digest = hashlib.blake2b(loader.encode(), digest_size=7).digest()
        self._hash = int.from_bytes(digest, "little")
        self._machines = network.group.machines
        self._machine_of = {
            rank: machine for machine, ranks in enumerate(self._machines.ranks) for rank in ranks
        }
        self._rounds = 0

    def exchange(self, by_set: Mapping[RowSet, WantedRows], *, finished: bool) -> RoundPlan:
        """Exchanges the ids of the next round. Collective; synchronises with a GPU.

        Args:
            by_set: the rows that this rank wants.
            finished: whether this rank has no more batches.

        Raises:
            PeerLostError: a rank is lost or did not come in time.
            CollectiveMismatchError: a rank iterates another loader.
        """
        plan = RoundPlan(self._rounds, by_set)
        local = self._within_machine(plan, finished)
        requests = self._between_machines(plan, local)
        plan.counts_to = {partner: _counts(message) for partner, message in requests.items()}
        for rows in self._layout.sets:
            ids = [message.ids[rows] for message in requests.values() if rows in message.ids]
            if ids:
                plan.requested[rows] = self._on_device(np.concatenate(ids) + rows.split.hot)
        self._rounds += 1
        return plan

    def _within_machine(self, plan: RoundPlan, finished: bool) -> list[RoundMessage]:
        """Sends the ids of this rank's rows to the ranks of its machine. Returns the message of
        each of them for this rank.
        """
        masks = {rows: w.mask for rows, w in plan.requests.items()}
        messages = {}
        for position, rank in enumerate(self._machines.local_ranks):
            ids = {rows: w.by_fetcher[position] for rows, w in plan.requests.items()}
            messages[rank] = RoundMessage(self._hash, plan.number, int(finished), masks, ids)
        plan.counts_by_fetcher = {rank: _counts(message) for rank, message in messages.items()}
        own = messages.pop(self._machines.rank)
        self._traffic.add(local_bytes=WORD_BYTES * _num_ids(messages.values()))
        received = self._swap(messages, LOCAL_IDS) | {self._machines.rank: own}
        plan.counts_for = {rank: _counts(received[rank]) for rank in self._machines.local_ranks}
        return [received[rank] for rank in self._machines.local_ranks]

    def _between_machines(
        self, plan: RoundPlan, local: list[RoundMessage]
    ) -> dict[int, RoundMessage]:
        """Requests rows from the partners, and returns their requests.

        Args:
            local: what the ranks of this machine want from this rank.
        """
        routes = self._layout.routes
        finished = sum(message.finished for message in local)
        masks: dict[RowSet, int] = {}
        ids: dict[int, dict[RowSet, np.ndarray]] = {partner: {} for partner in routes.partners}
        for rows in self._layout.sets:
            id_lists = [message.ids[rows] for message in local if rows in message.ids]
            if not id_lists:
                continue
            masks[rows] = union_of_masks(rows, plan.counts_for)
            keys = self._merge(plan, rows, id_lists)
            parts = split_keys(keys, routes.partner_bounds)
            for partner, part in zip(routes.partners, parts, strict=True):
                ids[partner][rows] = numbers_of(part)
        messages = {
            partner: RoundMessage(self._hash, plan.number, finished, masks, ids[partner])
            for partner in routes.partners
        }
        plan.counts_from = {partner: _counts(message) for partner, message in messages.items()}
        received = self._swap(messages, IDS)
        # All ranks of a machine send the same number, and one of them at least is a partner.
        by_machine = {self._machine_of[rank]: m.finished for rank, m in received.items()}
        plan.finished = finished + sum(by_machine.values())
        words = RoundMessage.header_words(self._layout.sets) * len(messages)
        sent, num_received = _num_ids(messages.values()), _num_ids(received.values())
        self._traffic.add(
            ids_sent=sent,
            ids_received=num_received,
            bytes_sent=WORD_BYTES * (words + sent),
            bytes_received=WORD_BYTES * (words + num_received),
        )
        return received

    def _merge(self, plan: RoundPlan, rows: RowSet, parts: list[np.ndarray]) -> np.ndarray:
        """Returns the distinct keys of lists of the ranks of this machine, ascending."""
        if len(self._machines.local_ranks) == 1:
            return parts[0]
        keys, plan.slots[rows] = torch.unique(
            self._on_device(np.concatenate(parts)), return_inverse=True
        )
        on_host: np.ndarray = keys.cpu().numpy()
        return on_host

    def _swap(self, messages: Mapping[int, RoundMessage], tag: int) -> dict[int, RoundMessage]:
        """Sends a message to some ranks; returns the message of each of them, in their order."""
        sets = self._layout.sets
        encoded = {rank: message.encode(sets) for rank, message in messages.items()}
        purpose = f"round {self._rounds} of {self._loader}"
        words = self._network.swap(encoded, round_tag(self._rounds, tag), purpose)
        received = {rank: RoundMessage.decode(words[rank], sets) for rank in messages}
        self._check(received)
        return received

    def _check(self, received: Mapping[int, RoundMessage]) -> None:
        expected, machines = (self._hash, self._rounds), self._machines
        others = [r for r, m in received.items() if (m.loader_hash, m.round) != expected]
        if others:
            names = ", ".join(
                f"rank {r} of {machines.name(self._machine_of[r])}" for r in sorted(others)
            )
            raise CollectiveMismatchError(
                f"this rank ({machines.rank} of {machines.name(machines.index)}) iterates "
                f'{self._loader}, and another loader is iterated by {names}. With machines="shard" '
                "all ranks of all machines iterate the same loaders in the same order"
            )

    def _on_device(self, words: np.ndarray) -> Tensor:
        return torch.from_numpy(words).to(self._network.group.device)


def union_of_masks(rows: RowSet, counts: Mapping[int, Counts]) -> int:
    """Returns the tables of a row set that any rank wants, as bits."""
    return reduce(or_, (of_rank[rows][0] for of_rank in counts.values() if rows in of_rank), 0)


def _counts(message: RoundMessage) -> Counts:
    return {rows: (mask, len(message.ids[rows])) for rows, mask in message.masks.items()}


def _num_ids(messages: Iterable[RoundMessage]) -> int:
    return sum(len(ids) for message in messages for ids in message.ids.values())
