"""The store: one graph, its structure and tables, in the memory of all ranks (XGNN's GGMS)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol

import torch
from torch import Tensor

from peergraph.memory import Group, Table
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import close_all
from peergraph.memory.topology.topology import Topology
from peergraph.store.build.build_store import Wishes, build_store
from peergraph.store.build.materialize import add_table
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.disk import save_store as saving
from peergraph.store.disk import saved_embeddings as embeddings
from peergraph.store.disk.saved_store import SavedStore
from peergraph.store.hotness.hotness import HotnessSpec
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.schema import Schema
from peergraph.store.input.source import EDGE, NODE, EdgeType, GraphSource, NodeType
from peergraph.store.placement.added_tables import BuildRecord
from peergraph.store.placement.items import type_name
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.ratios import ShardRatios
from peergraph.store.placement.spill import Spill
from peergraph.store.report.reporting import Reporting


class _Closes(Protocol):
    def close(self) -> None: ...


class Store(Reporting):
    """Graph structure (CSC: in-neighbours) and node and edge tables, spread over tiers by a plan.

    Made by :meth:`build` or :meth:`load` on all ranks of the node group together; afterwards every
    read is one-sided. Users' ids go in and come out everywhere; the renumbering by hotness that
    placement needs stays inside. Works as a context manager. A pickled store is a handle: another
    process of the machine that unpickles it maps the same memory.

    WholeGraph III-B (multi-GPU graph storage), XGNN 3 and 4 (Global GNN Memory Store).
    """

    def __init__(
        self,
        group: Group | None,
        device: torch.device,
        schema: Schema,
        plan: Plan,
        ids: dict[NodeType, IdMap],
        structures: dict[EdgeType, TieredCsc],
        node_tables: dict[NodeType, dict[str, Table]],
        edge_tables: dict[EdgeType, dict[str, Table]],
        build_record: BuildRecord,
    ) -> None:
        super().__init__(schema, ids, structures, node_tables, edge_tables)
        self.group = group
        self.device = device
        self.plan = plan
        self.build_record = build_record
        """What tables that are added are placed by."""
        self._rank = 0 if group is None else group.rank
        self.measuring = None
        self.embeddings = {}
        self._scratch = []
        self._readers: list[weakref.ref[Any]] = []
        self._reversed: Store | None = None
        self.closed = False
        """Whether :meth:`close` has been called."""

    @classmethod
    def build(
        cls,
        source: GraphSource | None,
        *,
        plan: str | Plan = "auto",
        memory_budget: int | None = None,
        hotness: HotnessSpec = "out_degree",
        structure_hotness: HotnessSpec | Mapping[EdgeType, Tensor] | None = None,
        graph_ratio: float | None = None,
        feature_ratio: float | None = None,
        first: str | None = None,
        topology: Topology | None = None,
        spill: str | PathLike[str] | None = None,
        host_budget: int | None = None,
        device: str | torch.device | None = None,
        group: Group | None = None,
        timeout: float | None = None,
        progress: bool | None = None,
    ) -> Store:
        """Builds a store. Collective over the node group; synchronises.

        Args:
            source: the graph: on one rank, ``None`` on the others; or a share of it on every rank.
            plan: ``"replicated"``, ``"sharded"``, ``"host"``, ``"auto"``, or a :class:`Plan`.
                ``"auto"`` takes what reads least time by the machine's links, where
                :func:`peergraph.memory.measure_topology` has measured them; else it replicates what
                fits the budget, then shards, then leaves on the host, structure before features
                (XGNN 4.3). Without a GPU one copy in the machine's memory serves all ranks.
                ``"solver"``, ``"clique"`` and ``"clique-opt"`` plan by the links, too, to compare
                with (:data:`peergraph.store.placement.policies.POLICIES`).
            memory_budget: bytes each rank may take of its GPU, id maps included; default for
                plans by cost 60 % of what is free. Other plans raise if they need more.
            hotness: which nodes are read most, so lie nearest where rows are split over shards or
                tiers: ``"out_degree"`` (how often a node is an in-neighbour), ``"in_degree"``, what
                :func:`peergraph.sampling.presample` counted, or values ``[num_nodes]`` (by node
                type). Rank 0's values count.
            structure_hotness: the same for lists of in-neighbours, or values ``[destinations]`` by
                edge type; of what was counted, the reads of lists count. Default: one order of the
                nodes serves structure and features. An order of their own, by reads for each byte,
                costs a map of 4 bytes a destination near each rank and a look-up for each list, and
                only where the plan splits the structure.
            graph_ratio, feature_ratio: with ``"auto"``, XGNN's API: the share (0..1) of the bytes
                of structure, or of tables, to shard over the GPUs, hottest first; the rest goes to
                the host. What gets no ratio is placed in the memory that is left.
            first: with ``"auto"``, ``"structure"`` or ``"features"``: gets memory before the other.
            topology: links to plan by in the place of those measured, one GPU for each rank: links
                masked in it are not read.
            spill: folder for rows that the host's memory does not hold: the coldest of the widest
                tables, and without a GPU at last of the structure; see docs/disk.md.
            host_budget: bytes the store may take of the host's memory; default: what is free.
            device: ``"cpu"``, ``"cuda"`` or ``"cuda:i"``; see :meth:`Group.current`.
            group: the node group; default :meth:`Group.current`.
            timeout: seconds after which a missing rank is an error.
            progress: bars for long loads; default: where stderr is a terminal.

        Raises:
            ValueError, TypeError, IndexError: the source does not fit together; on every rank.
            ValueError: ratios, id maps, or a plan by name or hand that take more than the budget.
            MemoryError: a GPU or the host has less memory left than the plan needs; nothing has
                been allocated then.
            OSError: `spill` has less room than the plan needs.
            PeerLostError: a rank died or did not join in time.
        """
        wishes = Wishes(
            plan,
            memory_budget,
            hotness,
            structure_hotness,
            ShardRatios(graph_ratio, feature_ratio, first),
            topology,
            Spill(spill, host_budget),
        )
        group = group or Group.current(device=device, timeout=timeout)
        with group.collective("Store.build"):
            parts = build_store(source, wishes, group, progress)
        return cls(group, group.device, **vars(parts))

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        verify: bool = True,
        plan: str | Plan = "auto",
        memory_budget: int | None = None,
        hotness: HotnessSpec = "out_degree",
        structure_hotness: HotnessSpec | Mapping[EdgeType, Tensor] | None = None,
        graph_ratio: float | None = None,
        feature_ratio: float | None = None,
        first: str | None = None,
        topology: Topology | None = None,
        spill: str | PathLike[str] | None = None,
        host_budget: int | None = None,
        device: str | torch.device | None = None,
        group: Group | None = None,
        timeout: float | None = None,
        progress: bool | None = None,
    ) -> Store:
        """Builds a store from a folder that :meth:`save` wrote. Collective; synchronises.

        Each rank reads its share of the rows. Nothing outside the folder is read, no symbolic link
        in it, and nothing is unpickled. See docs/disk.md.

        Args:
            verify: compare the checksums of everything that is read, and of the manifest.

        Other arguments are those of :meth:`build`.

        Raises:
            FileNotFoundError: no such folder, or a file is missing.
            ValueError: a folder of another format version, or a manifest or file that is not as
                :meth:`save` wrote it: it names the file, what was expected and what was found. On
                every rank.
            OSError: a file cannot be read.
        """
        group = group or Group.current(device=device, timeout=timeout)
        with group.collective("Store.load"):
            saved = SavedStore.open(folder, verify, group)
            store = cls.build(
                saved.source(group),
                plan=plan,
                memory_budget=memory_budget,
                hotness=hotness,
                structure_hotness=structure_hotness,
                graph_ratio=graph_ratio,
                feature_ratio=feature_ratio,
                first=first,
                topology=topology,
                spill=spill,
                host_budget=host_budget,
                group=group,
                progress=progress,
            )
            embeddings.restore(store, saved)
        return store

    @collective("Store.save")
    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the store into a new folder of ``.npy`` files and a manifest: structure, tables,
        and embeddings with the state of their optimizers. Collective over the node group (rank 0
        writes); synchronises. See docs/disk.md.

        The folder is on the disk, with all files, when this returns. Until then it is a folder
        ``<name>.part-...`` beside it, which an error removes, and after a kill the next save of
        the same name.

        Raises:
            FileExistsError: the folder exists.
            OSError: the disk is full, or cannot be written. On every rank.
        """
        saving.save(self, folder)

    @collective("Store.add_node_table")
    def add_node_table(
        self, name: str, values: Tensor | None, node_type: NodeType = NODE, *, plan: str = "auto"
    ) -> Table:
        """Adds a table ``[num_nodes, ...]``. Collective; `values` on one rank suffices.

        Args:
            plan: ``"auto"`` places by the store's links, reads and what is left of its budget, and
                :attr:`plan` tells; or ``"replicated"``, ``"sharded"``, ``"host"``.

        Raises:
            ValueError: the name is taken, the rows do not match, or the table takes more than is
                left of the store's budget.
            MemoryError: a GPU or the host has less memory left than the table needs.
        """
        table = add_table(self, name, values, node_type, plan)
        self._node_tables.setdefault(node_type, {})[name] = table
        return table

    @collective("Store.add_edge_table")
    def add_edge_table(
        self, name: str, values: Tensor | None, edge_type: EdgeType = EDGE, *, plan: str = "auto"
    ) -> Table:
        """Adds a table ``[num_edges, ...]`` by edge id. Collective; otherwise as
        :meth:`add_node_table`.
        """
        table = add_table(self, name, values, edge_type, plan)
        self._edge_tables.setdefault(edge_type, {})[name] = table
        return table

    @collective("Store.reversed")
    def reversed(self) -> Store:
        """The same graph with every edge turned round: what is drawn of it are out-neighbours.

        Edge type ``(s, r, d)`` is ``(d, r, s)`` there; node ids, edge ids and tables are the same
        ones. It takes a structure's memory, in what is left of this store's budget, and is made
        once: the first call is collective, synchronises, and reads all edges on rank 0 (16 bytes
        each). Closed with this store.

        Raises:
            RuntimeError: this process is no rank of the store, and no rank has called it before.
            MemoryError: as :meth:`build`.
        """
        from peergraph.store.reversed_store import make_reversed

        if self._reversed is None:
            self._reversed = make_reversed(self)
        return self._reversed

    def register_reader(self, reader: Any) -> None:
        """Has :meth:`close` call ``reader.close()`` first, if the reader is still there by then.

        For what reads in the background: it must have ended before memory is freed.
        """
        # Each is one step, since readers may begin and end in several threads.
        self._readers.append(weakref.ref(reader, self._readers.remove))

    @collective("Store.close")
    def close(self) -> None:
        """Frees everything. Collective, where the ranks built the store together; idempotent.

        Waits for what other threads read of the store now; whatever reads it later, samplers and
        loaders among them, raises RuntimeError. Raises as :meth:`SharedRegion.close`, after closing
        the rest.
        """
        self.closed = True
        for ref in list(self._readers):
            if (reader := ref()) is not None:
                reader.close()
        tables = [
            table
            for by_name in (*self._node_tables.values(), *self._edge_tables.values())
            for table in by_name.values()
        ]
        parts: list[_Closes] = [
            *([] if self._reversed is None else [self._reversed]),
            *self.embeddings.values(),
            *tables,
            *self._structures.values(),
            *self._ids.values(),
        ]
        close_all(part.close for part in parts)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # After an error the other ranks may not come to a collective close; the end of the
        # process frees what is left.
        if error is None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"closed": False, "_readers": [], "_scratch": [], "embeddings": {}}
        return {**self.__dict__, "group": None, "measuring": None, **fresh}

    def __repr__(self) -> str:
        nodes = ", ".join(f"{t}: {n}" for t, n in self._schema.num_nodes.items())
        edges = ", ".join(f"{type_name(t)}: {n}" for t, n in self._schema.num_edges.items())
        return f"Store(nodes={{{nodes}}}, edges={{{edges}}}, device={self.device})"
