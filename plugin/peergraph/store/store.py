"""The store: one graph, its structure and tables, in the memory of all ranks (XGNN's GGMS)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from peergraph.memory import Group, NetworkTraffic, RowExchange, Table
from peergraph.memory.device.expandable_segments import expand_segments_in_little_memory
from peergraph.memory.group.collective_call import collective_call_machines
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import close_all
from peergraph.store.build.build_reversed import build_reversed
from peergraph.store.build.build_store import build_on_machines
from peergraph.store.build.machine_split import connect_exchange
from peergraph.store.build.materialize import add_table
from peergraph.store.contents import StoreContents, table_allocation
from peergraph.store.csc.neighbor_lists import CscRange, read_degrees, read_edge_index, read_range
from peergraph.store.disk.save_store import save_store
from peergraph.store.disk.saved_embeddings import restore
from peergraph.store.disk.saved_store import SavedStore
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.ingest.ingest_files import ingest
from peergraph.store.input.frame_spec import FrameSpec
from peergraph.store.input.source import EDGE, NODE, EdgeType, GraphSource, NodeType, reverse_type
from peergraph.store.placement.allocation import Allocation
from peergraph.store.placement.items import table_name, type_name
from peergraph.store.placement.options import (
    PlacementOptions,
    complete_options,
    disk_spill,
)
from peergraph.store.report.memory_use import MemoryUse, Scratch
from peergraph.store.report.open_stores import open_stores
from peergraph.store.report.read_recorder import ReadRecorder
from peergraph.store.stored_graph import StoredGraph


class Store(StoredGraph):
    """Graph structure (CSC: in-neighbours) and node and edge tables, spread over tiers by a plan.

    Made by :meth:`build` or :meth:`load` on all ranks of the node group together; afterwards every
    read is one-sided. All arguments and results use the users' ids; the renumbering by hotness that
    placement needs stays inside. Works as a context manager. A pickled store is a handle: another
    process of the machine that unpickles it maps the same memory.

    WholeGraph III-B (multi-GPU graph storage), XGNN 3 and 4 (Global GNN Memory Store).
    """

    group: Group | None
    """The ranks that built the store; None in a process that unpickled it."""
    device: torch.device
    """The device to which this rank reads."""
    embeddings: dict[tuple[NodeType, str], Embedding]
    """Trained tables by node type and name. :class:`peergraph.Embedding` adds them."""
    exchange: RowExchange | None
    """Brings rows of other machines to batches; None unless rows are split over machines."""
    measuring: ReadRecorder | None
    """Counts reads within :meth:`measure`."""
    closed: bool
    """Whether :meth:`close` has been called."""

    def __init__(
        self, group: Group, contents: StoreContents, exchange: RowExchange | None = None
    ) -> None:
        self.group = group
        self.device = group.device
        self.contents = contents
        self.embeddings = {}
        self.exchange = exchange
        self.measuring = None
        self.closed = False
        self._rank = group.rank
        self._scratch: list[tuple[str, weakref.ref[Scratch]]] = []
        self._readers: list[weakref.ref[Any]] = []
        self._reversed: Store | None = None
        open_stores.add(self)

    @classmethod
    def build(
        cls,
        source: GraphSource | None,
        *,
        device: str | torch.device | None = None,
        group: Group | None = None,
        timeout: float | None = None,
        progress: bool | None = None,
        **options: Unpack[PlacementOptions],
    ) -> Store:
        """Builds a store on each machine. Collective over all ranks of all machines; synchronises.

        Args:
            source: the graph on one rank of each machine and ``None`` on the others, or a part of
                it on each rank. Machines without a source receive the graph from another machine.
            device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``; see :meth:`Group.current`.
            group: the node group; default :meth:`Group.current`.
            timeout: seconds after which a missing rank is an error.
            progress: whether to show progress bars; default: only if stderr is a terminal.
            options: ``plan``, ``memory_budget``, ``hotness``, ``structure_hotness``,
                ``graph_ratio``, ``feature_ratio``, ``first``, ``topology``, ``spill``,
                ``host_budget``, ``machines``, ``hot_ratio``, ``batches_per_exchange``, ``storage``
                (`PlacementOptions`).

        Raises:
            ValueError, TypeError, IndexError: the source is inconsistent. Every rank raises this.
            ValueError: machines have graphs with different sizes, dtypes or edges.
            TypeError: a keyword is unknown.
            ValueError: ratios, id maps or the plan need more memory than the budget, or the storage
                of a table cannot hold a value.
            MemoryError: a GPU or the host has less free memory than the plan needs. Nothing has
                been allocated then.
            OSError: the folder `spill` has less space than the plan needs.
            PeerLostError: a rank died or did not join in time.
        """
        complete = complete_options(options)
        group = group or Group.current(device=device, timeout=timeout)
        with group.collective("Store.build"):
            contents = build_on_machines(source, complete, group, progress)
            exchange = connect_exchange(contents, complete, group)
        expand_segments_in_little_memory(group.device)
        return cls(group, contents, exchange)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        verify: bool = True,
        device: str | torch.device | None = None,
        group: Group | None = None,
        timeout: float | None = None,
        progress: bool | None = None,
        **options: Unpack[PlacementOptions],
    ) -> Store:
        """Builds a store from a folder that :meth:`save` wrote. Collective over all ranks of all
        machines; synchronises.

        Each machine reads the folder, and each of its ranks reads a share of the rows. Other files
        and symbolic links are not read, and nothing is unpickled. See docs/guides/disk.md.

        Args:
            verify: whether to compare the checksums of the manifest and of all bytes that are read.
            device, group, timeout, progress, options: as :meth:`build` takes them.

        Raises:
            FileNotFoundError: the folder or a file is missing.
            ValueError: the format has another version, or :meth:`save` did not write a file like
                this. The error names the file, what was expected and what was found. On every rank.
            OSError: a file cannot be read.
        """
        complete = complete_options(options)
        group = group or Group.current(device=device, timeout=timeout)
        with group.collective("Store.load"):
            saved = collective_call_machines(group, lambda: SavedStore.open(folder, verify, group))
            source = saved.source(group, disk_spill(complete).folder)
            store = cls.build(source, group=group, progress=progress, **complete)
            restore(store, saved)
        return store

    ingest = staticmethod(ingest)

    @collective("Store.save")
    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the store into a new folder of ``.npy`` files and a manifest: structure, tables,
        and embeddings with the state of their optimizers. Collective over the node group, whose
        ranks write together (of several machines, save on one); synchronises. See
        docs/guides/disk.md.

        Until all is on the disk, the folder has the name ``<name>.part-...``. After an error, this
        folder is removed; after a kill, the next save with the same name removes it.

        Raises:
            FileExistsError: the folder exists.
            OSError: the disk is full, or cannot be written. On every rank.
            RuntimeError: this process is no rank of the store.
            NotImplementedError: rows are split over machines.
        """
        save_store(self.contents, [*self.embeddings.values()], folder, self._ranks("save it"))

    def edge_index(self, edge_type: EdgeType = EDGE) -> Tensor:
        """Returns sources and destinations, ``[2, E]`` int64 on the CPU, in the order of the edge
        ids. One-sided; synchronises.
        """
        maps = (self.id_map(edge_type[2]), self.id_map(edge_type[0]))
        return read_edge_index(self.csc(edge_type), *maps)

    def in_degree(self, edge_type: EdgeType = EDGE) -> Tensor:
        """Returns ``[num destinations]`` int64 on the CPU. One-sided; synchronises."""
        return read_degrees(self.csc(edge_type), self.id_map(edge_type[2]))

    def read_csc(
        self, edge_type: EdgeType = EDGE, start: int = 0, stop: int | None = None
    ) -> CscRange:
        """Copies the in-neighbours of destinations ``start .. stop - 1`` to this rank's device:
        ``indptr``, ``indices`` and ``edge_ids``, in the users' ids. One-sided; synchronises once.

        Args:
            edge_type: the relation; ``KeyError`` for an unknown one.
            start, stop: users' ids of destinations; `stop` None: to the last one.

        Raises ValueError if ``start`` and ``stop`` are not a range of destinations.
        """
        maps = (self.id_map(edge_type[2]), self.id_map(edge_type[0]))
        return read_range(self.csc(edge_type), start, stop, *maps)

    @collective("Store.add_node_table")
    def add_node_table(
        self,
        name: str,
        values: Tensor | None,
        node_type: NodeType = NODE,
        *,
        plan: str = "auto",
        storage: str | torch.dtype | None = None,
    ) -> Table:
        """Adds a table ``[num_nodes, ...]``, whole on each machine. Collective; `values` on one
        rank of the machine suffices.

        Args:
            plan: ``"auto"`` places by the store's links and reads in the rest of its budget;
                :attr:`plan` then says where. Or ``"replicated"``, ``"sharded"``, ``"host"``.
            storage: as :meth:`build` takes it for a table; see :attr:`storage_reports`.

        Raises:
            ValueError: the name is taken, the rows do not match, the table takes more than is left
                of the store's budget, or its storage cannot hold a value.
            MemoryError: a GPU or the host has less memory left than the table needs.
        """
        ranks, allocations = self._ranks("add to it"), self.memory().allocations
        return add_table(self.contents, name, values, node_type, plan, storage, allocations, ranks)

    @collective("Store.add_edge_table")
    def add_edge_table(
        self,
        name: str,
        values: Tensor | None,
        edge_type: EdgeType = EDGE,
        *,
        plan: str = "auto",
        storage: str | torch.dtype | None = None,
    ) -> Table:
        """Adds a table ``[num_edges, ...]`` by edge id, as :meth:`add_node_table`. Collective."""
        ranks, allocations = self._ranks("add to it"), self.memory().allocations
        return add_table(self.contents, name, values, edge_type, plan, storage, allocations, ranks)

    @collective("Store.reversed")
    def reversed(self) -> Store:
        """Returns the graph with every edge reversed: samplers on it draw out-neighbours.

        Edge type ``(s, r, d)`` becomes ``(d, r, s)``; node ids, edge ids and tables stay the same.
        Its structure takes memory from the rest of this store's budget. The first call is
        collective, synchronises, and reads all edges on rank 0 (16 bytes each).

        Raises:
            RuntimeError: this process is no rank of the store, and no rank has called it before.
            MemoryError: as :meth:`build`.
        """
        if self._reversed is None:
            self._reversed = ReversedStore.of(self, self._ranks("reverse it"))
        return self._reversed

    def memory(self) -> MemoryUse:
        """Returns the bytes by rank, tier, relation and table: those that were requested, and those
        that the driver allocated. Not collective; does not synchronise.

        Includes the node maps of this rank's samplers, not the memory of mini-batches.
        """
        self._scratch = [(name, ref) for name, ref in self._scratch if ref() is not None]
        scratch = [(name, tensor) for name, ref in self._scratch if (tensor := ref()) is not None]
        return MemoryUse(
            tuple(self._allocations()),
            self.device.type,
            self._rank,
            tuple((name, tensor.num_bytes) for name, tensor in scratch),
        )

    def network_traffic(self) -> NetworkTraffic:
        """Returns this rank's traffic with other machines. Not collective."""
        return NetworkTraffic() if self.exchange is None else self.exchange.traffic

    def register_scratch(self, name: str, scratch: Scratch) -> None:
        """Has :meth:`memory` list `scratch` under this name for as long as the object exists."""
        self._scratch.append((name, weakref.ref(scratch)))

    @contextmanager
    def measure(self) -> Iterator[ReadRecorder]:
        """Counts the reads of samplers and gathers on this rank, by source::

            with store.measure() as measured:
                for batch in loader: ...
            print(measured)                       # compared with the plan's prediction
            everyone = measured.of_all_ranks(store.group)

        It counts Python calls of this process: gathers of tables; lists that neighbour samplers and
        walks read, and the edge ids of the sample; features that layers read without a gather
        (:class:`peergraph.memory.TableRows`), one read per edge, without times. The CPU and CUDA
        count the same. Synchronises at the end; not collective.

        It does not count other processes (workers of a DataLoader), users' kernels, replays of CUDA
        graphs; weights, times and edge ids that samplers look up; lists that are searched for an
        edge; empty lists of walks with restarts; lists of :meth:`reversed`, which counts its own.

        Raises RuntimeError if the store is being measured already.
        """
        if self.measuring is not None:
            raise RuntimeError("the store is being measured already")
        recorder = ReadRecorder(self.plan, self._rank, self.device)
        for kind, name, table in self._tables():
            if kind not in ("ids", "list order"):
                recorder.watch_table(kind, name, table)
        for edge_type, structure in self.contents.structures.items():
            recorder.watch_lists(edge_type, type_name(edge_type), structure)
        self.measuring = recorder
        try:
            yield recorder
        finally:
            self.measuring = None
            recorder.stop()

    def register_reader(self, reader: Any) -> None:
        """Has :meth:`close` call ``reader.close()`` first, if it still exists. Any thread may."""
        self._readers.append(weakref.ref(reader, self._readers.remove))

    @collective("Store.close")
    def close(self) -> None:
        """Frees everything. Collective, where the ranks built the store together; idempotent. Waits
        for reads of other threads. Raises as :meth:`SharedRegion.close`, after closing the rest.
        """
        self.closed = True
        for ref in list(self._readers):
            if (reader := ref()) is not None:
                reader.close()
        contents = self.contents
        by_name = (*contents.node_tables.values(), *contents.edge_tables.values())
        close_all(
            (
                *(() if self.exchange is None else (self.exchange.close,)),
                *(() if self._reversed is None else (self._reversed.close,)),
                *(embedding.close for embedding in self.embeddings.values()),
                *(table.close for tables in by_name for table in tables.values()),
                *(structure.close for structure in contents.structures.values()),
                *(id_map.close for id_map in contents.id_maps.values()),
            )
        )

    def _ranks(self, action: str) -> Group:
        if self.group is None:
            raise RuntimeError(f"only the ranks that built a store can {action}")
        return self.group

    def _tables(self) -> Iterator[tuple[str, str, Table]]:
        """Yields kind, name and table of everything except structures, as named in the plan."""
        yield from self.contents.all_tables()
        for (node_type, name), embedding in self.embeddings.items():
            for part, table in embedding.tables().items():
                yield "embedding", f"{table_name(node_type, name)}.{part}", table

    def _allocations(self) -> Iterator[Allocation]:
        yield from self.contents.allocations()
        for kind, name, table in self._tables():
            if kind == "embedding":
                yield table_allocation(kind, name, table, self.plan.partitions_in_use)
        if self._reversed is not None:
            for allocation in self._reversed._allocations():
                yield replace(allocation, kind=f"reversed {allocation.kind}")

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # After an error other ranks may not come to close; the end of the process frees the memory.
        if error is None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"closed": False, "_readers": [], "_scratch": [], "embeddings": {}}
        return {**self.__dict__, "group": None, "measuring": None, "exchange": None, **fresh}

    def __repr__(self) -> str:
        schema = self.contents.schema
        nodes = ", ".join(f"{t}: {schema.num_nodes[t]}" for t in schema.node_types)
        edges = ", ".join(f"{type_name(t)}: {n}" for t, n in schema.num_edges.items())
        return f"Store(nodes={{{nodes}}}, edges={{{edges}}}, device={self.device})"


class ReversedStore(Store):
    """The structure of another store with sources and destinations exchanged; see
    :meth:`Store.reversed`. Its node and edge tables are those of the other store.
    """

    original: Store

    @classmethod
    def of(cls, store: Store, group: Group) -> ReversedStore:
        """Builds the reverse of a store. Collective."""
        coo = {t: store.edge_index(t) for t in store.edge_types} if group.rank == 0 else None
        contents = build_reversed(store.contents, coo, store.memory().allocations, group)
        reverse = cls(group, contents, store.exchange)
        reverse.original = store
        return reverse

    def node_table_names(self, node_type: NodeType = NODE) -> list[str]:
        """Returns the names of the tables of a node type."""
        return self.original.node_table_names(node_type)

    def edge_table_names(self, edge_type: EdgeType = EDGE) -> list[str]:
        """Returns the names of the tables of an edge type."""
        return self.original.edge_table_names(reverse_type(edge_type))

    def node_table(self, name: str, node_type: NodeType = NODE) -> Table:
        """Returns a table, read by users' node ids. Raises ``KeyError`` if it is unknown."""
        return self.original.node_table(name, node_type)

    def edge_table(self, name: str, edge_type: EdgeType = EDGE) -> Table:
        """Returns a table, read by users' edge ids. Raises ``KeyError`` if it is unknown."""
        return self.original.edge_table(name, reverse_type(edge_type))

    def frames(self, owner: NodeType | EdgeType = NODE) -> dict[str, FrameSpec]:
        """Returns the frames of a node type or an edge type by name."""
        return self.original.frames(owner if isinstance(owner, str) else reverse_type(owner))

    def list_values(self, table: str, owner: NodeType | EdgeType = NODE) -> Table:
        """Returns the elements of lists. Raises ``KeyError`` if they are unknown."""
        kind = owner if isinstance(owner, str) else reverse_type(owner)
        return self.original.list_values(table, kind)

    def add_node_table(self, *args: Any, **options: Any) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_node_table(*args, **options)

    def add_edge_table(
        self, name: str, values: Tensor | None, edge_type: EdgeType = EDGE, **options: Any
    ) -> Table:
        """Adds a table to the other store; see there. Collective."""
        return self.original.add_edge_table(name, values, reverse_type(edge_type), **options)

    def reversed(self) -> Store:
        """Returns the store that this one was made of."""
        return self.original
