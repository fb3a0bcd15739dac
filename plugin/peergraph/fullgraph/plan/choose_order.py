"""Chooses the order of nodes, by the counted volume of remote rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.side_by_side import (
    AllReduce,
    AllToAll,
    Gather,
    Steps,
    batches,
    run_side_by_side,
)
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.layout.blocks import balance_cost, balance_costs, cut_blocks, imbalance
from peergraph.fullgraph.layout.clusters import community_parts
from peergraph.fullgraph.layout.edge_share import Share, pieces_of
from peergraph.fullgraph.layout.machine_placement import place_parts, rows_between_parts
from peergraph.fullgraph.layout.metis import has_metis, metis_parts
from peergraph.fullgraph.layout.numbering import (
    ORDERS,
    check_part,
    order_by_part,
    original_order,
    random_order,
    rank_of_nodes,
)
from peergraph.fullgraph.layout.volume import (
    Matrix,
    Volume,
    VolumeCounter,
    count_by_machine,
    count_by_rank,
)
from peergraph.memory import Group, collective_call
from peergraph.memory.group.content import describe_content
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.store import EdgeType, NodeType

NodeOrder = str | Tensor | Mapping[NodeType, str | Tensor]
"""A name of :data:`ORDERS`, a part for each node, or either by node type."""

Parts = dict[NodeType, tuple[Tensor, tuple[int, ...]]]
"""By node type: the order [nodes] int64 on the CPU, and the nodes of each rank."""

# Another order takes the place of a random one if the busiest rank exchanges at most this share of
# the rows, and has at most this multiple of the edges.
_LEAST_GAIN, _MOST_IMBALANCE = 0.8, 1.25
# Communities are tried without being asked for where all edges fit into half of the memory that is
# free on rank 0; METIS where it is installed. On the CPU either takes at most about half a minute.
_BYTES_PER_EDGE, _MOST_EDGES_ON_CPU, _MOST_EDGES_OF_METIS = 350, 1 << 23, 1 << 24


def _metis_parts(*arguments: Any) -> tuple[Tensor, Tensor]:
    part = metis_parts(*arguments)
    return part, torch.zeros_like(part)


_MOST_MARKS = 1 << 28  # bytes of marks of relations whose rows are counted together
_PARTITIONERS = {"communities": community_parts, "metis": _metis_parts}


@dataclass(frozen=True)
class ChosenOrder:
    """The order of the nodes of each type, and why.

    Args:
        name: of the order, as printed.
        parts: by node type.
        volumes: by relation.
        reason: in words.
        candidates: of the orders that were compared, the rows that the busiest rank exchanges, or
            with several machines the busiest machine over the network.
    """

    name: str
    parts: Parts
    volumes: dict[EdgeType, Volume]
    reason: str
    candidates: dict[str, int]

    @property
    def volume(self) -> Volume:
        """Of all relations together."""
        return add_volumes(self.volumes, len(next(iter(self.parts.values()))[1]))


def add_volumes(volumes: Mapping[EdgeType, Volume], world_size: int) -> Volume:
    """Returns the sum of the volumes of relations; rows of one type count for each relation."""
    zeros = ((0,) * world_size,) * world_size
    return sum(volumes.values(), Volume(zeros, zeros))


def check_order(
    order: NodeOrder, num_nodes: Mapping[NodeType, int]
) -> dict[NodeType, str | Tensor]:
    """Returns the order of each node type; types that are not named get "auto".

    Raises:
        TypeError, ValueError: no order, an unknown type, or a vector that does not fit.
    """
    if isinstance(order, Tensor):
        if len(num_nodes) != 1:
            raise ValueError(
                f"order must be a dict of parts by node type for the types {list(num_nodes)}, got "
                "one tensor"
            )
        order = dict.fromkeys(num_nodes, order)
    if isinstance(order, str):
        order = dict.fromkeys(num_nodes, order)
    unknown = [t for t in order if t not in num_nodes]
    if unknown:
        raise ValueError(f"order names the node type {unknown[0]!r}, expected {list(num_nodes)}")
    checked: dict[NodeType, str | Tensor] = dict.fromkeys(num_nodes, "auto")
    for node_type, of_type in order.items():
        if isinstance(of_type, Tensor):
            of_type = check_part(of_type, num_nodes[node_type])
        elif of_type not in ORDERS:
            raise ValueError(
                f"order must be one of {', '.join(ORDERS)}, or a tensor with the part of each "
                f"node, got {of_type!r}"
            )
        checked[node_type] = of_type
    return checked


def order_digest(order: str | Tensor) -> str:
    """Returns a text that is equal on two ranks if their orders are. Synchronises."""
    if isinstance(order, str):
        return order
    return f"parts {describe_content(order)}"


class OrderChooser:
    """Makes orders, and counts what each would exchange. All ranks use one together.

    Args:
        group: the ranks.
        num_nodes: by node type.
        shares: this rank's edges of each relation, with checked ids, on the group's device.
        seed: of random orders and of partitioners.
        step: called with the number of edges of the share after each pass over them.
        blocks: blocks to make; None: one for each rank. Another number is for planning by one rank.
    """

    def __init__(
        self,
        group: Group,
        num_nodes: Mapping[NodeType, int],
        shares: Mapping[EdgeType, Share],
        seed: int,
        step: Callable[[int], object] = lambda _: None,
        blocks: int | None = None,
    ) -> None:
        self.group = group
        self.machines = group.machines.ranks if group.machines.count > 1 else ()
        self.blocks = blocks or group.world_size
        self.transport = Transport.of(group)
        self.num_nodes = num_nodes
        self.shares = shares
        self.seed = seed
        self.step = step
        self._num_sources: dict[EdgeType, int] = {}
        self.degrees = self._degrees()
        self.cost = {t: balance_cost(d) for t, d in self.degrees.items()}
        self._joint: dict[str, dict[NodeType, tuple[Tensor, Tensor]]] = {}

    def choose(self, orders: Mapping[NodeType, str | Tensor]) -> ChosenOrder:
        """Returns the order that the user gave; for "auto", the best one. Collective."""
        if "auto" not in [g for g in orders.values() if isinstance(g, str)]:
            return self._try(orders, "as asked for")
        if self.blocks == 1:
            return self._try(self._with(orders, "original"), "one rank has all rows")
        names = ["random", "original", *self._partitioners_to_try()]
        tried = {name: self._try(self._with(orders, name), "") for name in names}
        return self._best(tried)

    def _exchanged(self, volumes: Mapping[EdgeType, Volume]) -> int:
        """Rows that the busiest rank exchanges, or the busiest machine over the network."""
        total = add_volumes(volumes, self.blocks)
        return total.network_largest(self.machines) if self.machines else total.largest

    def _try(self, orders: Mapping[NodeType, str | Tensor], reason: str) -> ChosenOrder:
        names = {o if isinstance(o, str) else "given" for o in orders.values()}
        parts = {t: self._part(t, order) for t, order in orders.items()}
        sizes = {t: self.num_nodes[t[0]] * self.blocks for t in self.shares}
        volumes: dict[EdgeType, Volume] = {}
        ranks = {t: rank_of_nodes(*part, self.group.device) for t, part in parts.items()}
        for together in batches(sizes, _MOST_MARKS):
            steps = [self._volume(edge_type, ranks) for edge_type in together]
            volumes |= zip(together, run_side_by_side(self.group, steps), strict=True)
        name = ", ".join(sorted(names))
        return ChosenOrder(name, parts, volumes, reason, {name: self._exchanged(volumes)})

    def _with(
        self, orders: Mapping[NodeType, str | Tensor], name: str
    ) -> dict[NodeType, str | Tensor]:
        auto = {t: isinstance(order, str) and order == "auto" for t, order in orders.items()}
        return {t: name if auto[t] else order for t, order in orders.items()}

    def _part(self, node_type: NodeType, order: str | Tensor) -> tuple[Tensor, tuple[int, ...]]:
        if isinstance(order, Tensor):
            return order_by_part(order, self.blocks)
        if order in _PARTITIONERS:
            part, community = self._partitioned(order)[node_type]
            return order_by_part(part, self.blocks, community)
        count = self.num_nodes[node_type]
        nodes = original_order(count) if order == "original" else random_order(count, self.seed)
        cost = self.cost[node_type]
        return nodes, cut_blocks(cost[nodes.to(cost.device)], self.blocks)

    def _degrees(self) -> dict[NodeType, Tensor]:
        """[nodes] int64 in-degrees by node type, over all relations. Collective.

        For one block, the nodes that are sources are counted in the same pass over the edges.
        """
        device = self.group.device
        degrees = {
            t: torch.zeros(count, dtype=torch.int64, device=device)
            for t, count in self.num_nodes.items()
        }
        for edge_type, share in self.shares.items():
            into = degrees[edge_type[2]]
            is_source = into.new_zeros(self.num_nodes[edge_type[0]], dtype=torch.bool)
            for piece in pieces_of(share):
                into += torch.bincount(piece.destination, minlength=into.numel())
                if self.blocks == 1:
                    is_source[piece.source.long()] = True
                self.step(piece.num_edges)
            self._num_sources[edge_type] = int(is_source.sum())
        return {t: self.transport.all_reduce(counts) for t, counts in degrees.items()}

    def _volume(self, edge_type: EdgeType, ranks: Mapping[NodeType, Tensor]) -> Steps[Volume]:
        """Counts the volume of one relation, from all ranks' shares. Collective.

        Args:
            ranks: [nodes] the rank of each node, by type.
        """
        if self.blocks == 1:
            num_edges = self.shares[edge_type].num_edges
            self.step(num_edges)
            return Volume(((self._num_sources[edge_type],),), ((num_edges,),))
        world_size, source_rank = self.group.world_size, ranks[edge_type[0]]
        counter = VolumeCounter(source_rank, ranks[edge_type[2]], self.blocks)
        share = self.shares[edge_type]
        for piece in pieces_of(share):
            counter.add(piece.source, piece.destination)
            self.step(piece.num_edges)
        if world_size == 1:
            return counter.volume()
        # Rank p gets what all ranks have marked for it.
        marks = [torch.empty_like(counter.marks[0]) for _ in range(world_size)]
        yield AllToAll(marks, list(counter.marks))
        mine = marks[0]
        for others in marks[1:]:
            mine |= others
        rows = yield Gather(count_by_rank(mine, source_rank, world_size))
        edges = yield AllReduce(counter.edges)
        network = self._network_rows(mine, source_rank)
        return Volume(tuple(rows), tuple(map(tuple, edges.tolist())), network)

    def _network_rows(self, marks: Tensor, source_rank: Tensor) -> Matrix:
        """See :attr:`Volume.network`. Collective.

        Args:
            marks: [sources] rows that this rank needs.
            source_rank: [sources] rank of each row.
        """
        if not self.machines:
            return ()
        node, machines = self.group.node_group, self.group.machines
        by_rank = Transport.of(node).all_gather_rows(marks.unsqueeze(0), [1] * node.world_size)
        ranks = machines.local_ranks
        mine = count_by_machine(by_rank.any(0), source_rank, ranks, self.group.world_size)
        everyone = self.group.all_gather(mine)
        return tuple(everyone[ranks[0]] for ranks in machines.ranks)

    def _partitioners_to_try(self) -> list[str]:
        """The partitioners that "auto" tries: the same on all ranks. Collective."""
        on_gpu = self.group.device.type == "cuda"
        edges = sum(self.group.all_gather(sum(s.num_edges for s in self.shares.values())))
        free = free_gpu_memory(self.group.device) if on_gpu else free_host_memory()
        names = []
        if _BYTES_PER_EDGE * edges <= free // 2:
            if edges <= _MOST_EDGES_OF_METIS and has_metis():
                names.append("metis")
            # On the CPU METIS is faster, and better.
            if on_gpu or (edges <= _MOST_EDGES_ON_CPU and not names):
                names.append("communities")
        agreed: list[str] = self.group.broadcast(names)
        return agreed

    def _partitioned(self, name: str) -> dict[NodeType, tuple[Tensor, Tensor]]:
        """The part and the community of each node, from rank 0, which gets all edges. Collective.

        By node type.
        """
        if name not in self._joint:
            device = self.group.device
            starts, count = {}, 0
            for node_type, nodes in self.num_nodes.items():
                starts[node_type], count = count, count + nodes
            ends = [
                torch.stack([s.source.long() + starts[t[0]], s.destination.long() + starts[t[2]]])
                for t, share in self.shares.items()
                for s in pieces_of(share)
            ]
            mine = (
                torch.cat(ends, 1) if ends else torch.zeros((2, 0), dtype=torch.int64, device="cpu")
            )
            source, destination = self._at_rank_0(mine.to(device))
            parts_and_communities = torch.zeros((2, count), dtype=torch.int64, device=device)

            def partition() -> None:
                if self.group.rank == 0:
                    cost = balance_costs([self.degrees[t] for t in self.num_nodes])
                    parts = _PARTITIONERS[name]
                    part, community = parts(source, destination, cost, self.blocks, self.seed)
                    if self.machines:
                        rows = rows_between_parts(source, destination, part, self.blocks)
                        ranks = torch.tensor(place_parts(rows, self.machines), device=part.device)
                        part = ranks[part]
                    parts_and_communities[0].copy_(part)
                    parts_and_communities[1].copy_(community)

            collective_call(self.group, partition)
            self.transport.broadcast(parts_and_communities)
            pieces = torch.split(parts_and_communities, list(self.num_nodes.values()), 1)
            self._joint[name] = {
                t: (piece[0], piece[1]) for t, piece in zip(self.num_nodes, pieces, strict=True)
            }
        return self._joint[name]

    def _at_rank_0(self, ends: Tensor) -> Tensor:
        """[2, edges] of all ranks on rank 0, nothing on the others. Collective."""
        rows = ends.t().contiguous()
        counts = self.group.all_gather(rows.shape[0])
        none = [0] * len(counts)
        received = counts if self.group.rank == 0 else none
        return self.transport.exchange_rows(rows, [len(rows), *none[1:]], received).t()

    def _best(self, tried: Mapping[str, ChosenOrder]) -> ChosenOrder:
        """Random, unless another order has clearly less to exchange and about the same balance."""
        candidates = {name: self._exchanged(chosen.volumes) for name, chosen in tried.items()}
        edges_of = {name: imbalance(chosen.volume.num_edges) for name, chosen in tried.items()}
        rows = candidates["random"]
        busiest = "busiest machine" if self.machines else "busiest rank"
        good = [
            name
            for name in tried
            if candidates[name] <= _LEAST_GAIN * rows
            and edges_of[name] <= _MOST_IMBALANCE * edges_of["random"]
        ]
        name = min(good, key=candidates.__getitem__) if rows and good else "random"
        chosen = tried[name]
        if name == "random":
            others = ", ".join(f"{n} {c:,}" for n, c in candidates.items() if n != "random")
            reason = (
                f"no other order lowers the rows of the {busiest} by a fifth: {rows:,}, {others}"
            )
        else:
            reason = (
                f"the {busiest} exchanges {candidates[name]:,} rows, with a random order {rows:,}"
            )
        return ChosenOrder(chosen.name, chosen.parts, chosen.volumes, reason, candidates)
