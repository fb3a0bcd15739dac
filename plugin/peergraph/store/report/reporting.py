"""What a store says of itself: the memory it takes, and what is read of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from peergraph.memory import Table
from peergraph.memory.table.partitions import Partitions
from peergraph.store.contents import Contents
from peergraph.store.input.source import NodeType
from peergraph.store.placement.allocation import Allocation
from peergraph.store.placement.items import table_name, type_name
from peergraph.store.placement.plan import Plan
from peergraph.store.report.memory_use import MemoryUse
from peergraph.store.report.read_recorder import ReadRecorder

if TYPE_CHECKING:
    from peergraph.store.embedding.embedding import Embedding


class Scratch(Protocol):
    """Memory that something keeps beside a store."""

    @property
    def num_bytes(self) -> int:
        """How much, at the moment."""


class Reporting(Contents):
    """The part of a store that reports."""

    device: torch.device
    plan: Plan
    measuring: ReadRecorder | None
    """What counts reads at the moment, if anything."""
    _rank: int
    _reversed: Reporting | None
    _scratch: list[tuple[str, weakref.ref[Scratch]]]
    embeddings: dict[tuple[NodeType, str], Embedding]
    """What is trained, by node type and name; made by :class:`peergraph.Embedding`."""

    def memory(self) -> MemoryUse:
        """Bytes by rank, tier, relation and table: as they were asked for, and as the driver hands
        them out. Not collective, does not synchronise.

        Samplers' node maps are in it for this rank; what a mini-batch needs for itself is not, nor
        are the tables of page addresses that the driver keeps for mapped memory.
        """
        self._scratch = [(name, ref) for name, ref in self._scratch if ref() is not None]
        kept = [(name, held) for name, ref in self._scratch if (held := ref()) is not None]
        return MemoryUse(
            tuple(self._allocations()),
            self.device.type,
            self._rank,
            tuple((name, held.num_bytes) for name, held in kept),
        )

    @contextmanager
    def measure(self) -> Iterator[ReadRecorder]:
        """Counts, on this rank, what samplers and gathers read within, and from where::

            with store.measure() as measured:
                for batch in loader: ...
            print(measured)                       # beside the plan's prediction
            everyone = measured.of_all_ranks(store.group)

        Counted is what goes through Python calls of this process: gathers of the store's tables;
        the lists that neighbour samplers (of a fixed shape, too) and walks read, and the edge ids
        they yield; features that layers read in place (:class:`peergraph.memory.TableRows`), one
        read an edge. As many for the CPU as for CUDA. Each is counted after it was queued, by
        kernels of its own, so that the times of reads do not contain the counting; reads in place
        have no time of their own. Without :meth:`measure` nothing is added. Synchronises at the
        end; not collective.

        It cannot see, and the printed table says so: processes that the store was sent to (workers
        of a DataLoader, which sample and gather there), users' kernels, and what a CUDA graph does
        when it is replayed. Nor are these counted: weights, times and edge ids that samplers by
        weight or time look up; lists that are searched for an edge (node2vec, negatives that avoid
        edges) or found empty by walks with restarts; and lists of a :meth:`Store.reversed` store,
        which is measured by itself.

        Raises:
            RuntimeError: the store is being measured already.
        """
        if self.measuring is not None:
            raise RuntimeError("the store is being measured already")
        measuring = ReadRecorder(self.plan, self._rank, self.device)
        for kind, name, table in self._tables():
            if kind not in ("ids", "list order"):
                measuring.watch_table(kind, name, table)
        for edge_type, structure in self._structures.items():
            measuring.watch_lists(edge_type, type_name(edge_type), structure)
        self.measuring = measuring
        try:
            yield measuring
        finally:
            self.measuring = None
            measuring.stop()

    def register_scratch(self, name: str, scratch: Scratch) -> None:
        """From now on :meth:`memory` names `scratch`, as long as it is there."""
        self._scratch.append((name, weakref.ref(scratch)))

    def _allocations(self) -> Iterator[Allocation]:
        parts = self.plan.partitions_in_use
        for edge_type, structure in self._structures.items():
            sizes = {tier: region.sizes for tier, region in structure.regions.items()}
            yield _allocation("structure", type_name(edge_type), sizes, parts)
        for kind, name, table in self._tables():
            yield _allocation(kind, name, table.allocated, parts)
        if self._reversed is not None:
            for allocation in self._reversed._allocations():
                yield replace(allocation, kind=f"reversed {allocation.kind}")

    def _tables(self) -> Iterator[tuple[str, str, Table]]:
        """Kind, name and all tables, in the plan's words."""
        for node_type, ids in self._ids.items():
            for map_ in (ids.to_internal, ids.to_user):
                if map_ is not None:
                    yield "ids", type_name(node_type), map_
        for edge_type, structure in self._structures.items():
            if structure.edge_ids is not None:
                yield "edge ids", type_name(edge_type), structure.edge_ids
            if structure.order is not None:
                yield "list order", type_name(edge_type), structure.order
        for of_node, tables in self._node_tables.items():
            for name, table in tables.items():
                yield "node table", table_name(of_node, name), table
        for of_edge, tables in self._edge_tables.items():
            for name, table in tables.items():
                yield "edge table", table_name(of_edge, name), table
        for (of_node, name), embedding in self.embeddings.items():
            for what, table in embedding.tables().items():
                yield "embedding", f"{table_name(of_node, name)}.{what}", table


def _allocation(
    kind: str, name: str, sizes: Mapping[str, Sequence[int]], partitions: Partitions
) -> Allocation:
    nothing = (0,) * partitions.num_gpus
    replicated, sharded = (tuple(sizes.get(tier, nothing)) for tier in ("replicated", "sharded"))
    host, disk = (sum(sizes.get(tier, ())) for tier in ("host", "disk"))
    return Allocation(kind, name, replicated, sharded, host, disk=disk)
