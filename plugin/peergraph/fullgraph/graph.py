"""A graph of which each rank holds a block of nodes and their in-edges."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from peergraph.fullgraph.dry_run.model_recorder import ModelRecorder
from peergraph.fullgraph.dry_run.named_models import assumed_model
from peergraph.fullgraph.exchange.copy_transport import CopyTransport
from peergraph.fullgraph.exchange.mode_cost import MODES, STAGED_MODES
from peergraph.fullgraph.exchange.side_by_side import batches, run_side_by_side
from peergraph.fullgraph.exchange.transport import Transport
from peergraph.fullgraph.full_graph_options import FullGraphOptions, all_options
from peergraph.fullgraph.graph_arguments import agree_on_graph, check_ends, check_graph
from peergraph.fullgraph.layout.duplication import Duplication
from peergraph.fullgraph.layout.edge_share import (
    PIECE_EDGES,
    EdgeReader,
    EdgesInput,
    Share,
    StoreReader,
    UnreadShare,
)
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.offloaded_graph import OffloadedGraph
from peergraph.fullgraph.offload.rows.budget import make_allocator
from peergraph.fullgraph.offload.rows.user_rows import is_offloaded, read_rows
from peergraph.fullgraph.plan.available_memory import (
    device_budget,
    file_budget,
    group_topology,
    host_budget,
)
from peergraph.fullgraph.plan.choose_order import (
    ChosenOrder,
    OrderChooser,
    check_order,
)
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.memory_items import GraphFacts
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.fullgraph.plan.spread import sample_rows, spread_of
from peergraph.fullgraph.structure.build_structure import structure_steps
from peergraph.fullgraph.structure.neighbor_sums import ModeChoice
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory import Group, WorldGroup
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.naming import collective
from peergraph.memory.region.free_memory import free_gpu_memory, free_host_memory
from peergraph.memory.region.peer_access import PeerAccess
from peergraph.memory.table.table import Table
from peergraph.progress import progress_bar
from peergraph.store import EDGE, NODE, EdgeType, NodeType, Store

_logger = logging.getLogger(__name__)

_EDGE_BYTES = 24  # of an edge in a share: source, destination, id
_BYTES_OF_KEPT_EDGE = 120  # free memory for each edge of a share that is read once and kept
_MANY_EDGES = 1 << 20  # of a rank's share, whose memory counts
_BYTES_OF_NARROW_EDGE = 40  # and of one that is kept in pieces of narrow numbers
_PASSES, _MORE_PASSES = 4, 2  # over the edges, as the progress bar counts them; more for "auto"


class FullGraph:
    """The layouts of nodes and edges of a graph over all ranks, and its structures.

    Each rank holds a block of the nodes of each type, and the in-edges of these nodes (MG-GCN 4.1).
    Made by :meth:`build` or :meth:`from_store`.
    """

    group: Group
    """The ranks, of all machines (:class:`peergraph.memory.WorldGroup`)."""
    node_layouts: dict[NodeType, RowLayout]
    """Rows of nodes, by type; ids are the user's."""
    edge_layouts: dict[EdgeType, RowLayout]
    """Rows of edges, by relation; ids are the user's."""
    structures: dict[EdgeType, PartitionedStructure]
    """Edges, by relation."""
    order: ChosenOrder
    """The order of nodes, the volume of remote rows that it gives, and why it was chosen."""
    plan: FullGraphPlan
    """Memory, exchange and expected times."""
    offloaded: OffloadedGraph | None
    """Rows in host memory, and their chunks; None: all rows are on the devices."""

    def __init__(
        self,
        group: Group,
        node_layouts: dict[NodeType, RowLayout],
        structures: Mapping[EdgeType, PartitionedStructure],
        order: ChosenOrder,
        plan: FullGraphPlan,
        offloaded: OffloadedGraph | None = None,
    ) -> None:
        self.group = group
        self.node_layouts = node_layouts
        self.structures = dict(structures)
        self.edge_layouts = {t: s.edge_layout for t, s in structures.items()}
        self.order = order
        self.plan = plan
        self.offloaded = offloaded

    @classmethod
    def build(
        cls,
        group: Group | None,
        num_nodes: int | Mapping[NodeType, int],
        edges: EdgesInput | Mapping[EdgeType, EdgesInput],
        *,
        memory_budget: int | None = None,
        row_bytes: Mapping[NodeType, int] | None = None,
        edge_row_bytes: Mapping[EdgeType, int] | None = None,
        contents: Mapping[str, Any] | None = None,
        **options: Unpack[FullGraphOptions],
    ) -> FullGraph:
        """Partitions a graph that every rank has. Collective over all machines; synchronises.

        Besides the arguments, a rank takes at most about 280 bytes for each edge of the largest
        relation divided by the number of ranks, as two GPUs did with products and Reddit, plus
        (2 P + 40) bytes for each node on P ranks. One rank takes 30 bytes an edge.
        With the orders "communities" and "metis", rank 0 takes about 350 bytes for each edge of the
        whole graph; "auto" tries communities only where that fits easily.

        Args:
            group: the ranks of this machine, all of whose machines take part; None:
                :meth:`Group.current`.
            num_nodes: of the graph, or by node type.
            edges: of the graph, or by relation (source type, name, destination type): COO
                [2, edges], a :class:`peergraph.aggregate.Csc`, or (indptr, indices[, edge_ids]);
                int32 or int64, on any device. The same on all ranks.
            memory_budget: bytes of each rank's device; None: what is free.
            row_bytes: bytes of a node's tables, by node type, for the plan.
            edge_row_bytes: bytes of an edge's tables, by relation, for the plan.
            contents: what else must be equal on all ranks, by name: tables of rows, masks, values
                of the graph. Compared by a digest, see :func:`describe_content`.
            options: see :class:`peergraph.fullgraph.FullGraphOptions`.

        Raises:
            TypeError, ValueError: arguments that do not fit, or that differ between ranks, whose
                name and ranks the error gives; a budget or host memory that is too small, with a
                table of what is needed. On every rank.
            IndexError: the first edge with an end out of range; on every rank.
            ImportError: the order needs a package that is not installed.
        """
        group = WorldGroup.of(group or Group.current())
        counts, readers = collective_call(group, lambda: check_graph(num_nodes, edges))
        return _build(
            group,
            counts,
            readers,
            memory_budget,
            row_bytes,
            edge_row_bytes,
            contents or {},
            options,
        )

    @classmethod
    def from_store(
        cls,
        store: Store,
        *,
        memory_budget: int | None = None,
        row_bytes: Mapping[NodeType, int] | None = None,
        edge_row_bytes: Mapping[EdgeType, int] | None = None,
        contents: Mapping[str, Any] | None = None,
        **options: Unpack[FullGraphOptions],
    ) -> FullGraph:
        """Partitions the graph of a store. Collective over its ranks; synchronises.

        Each rank reads the lists of a range of destinations (:meth:`Store.read_csc`) and sends the
        edges to their ranks: no rank reads all edges, except rank 0 for the orders "communities"
        and "metis". The order "original" is that of the user's ids, whatever order the store has.

        Args:
            store: with all its relations.
            memory_budget: bytes of each rank's device; None: what is free.
            row_bytes, edge_row_bytes: bytes of tables, for the plan; None: those of the store.
            contents: what else must be equal on all ranks, see :meth:`build`.
            options: see :class:`peergraph.fullgraph.FullGraphOptions`.

        Raises:
            RuntimeError: this process is no rank of the store.
            Exception: as :meth:`build`.
        """
        if store.group is None:
            raise RuntimeError(
                "this process is no rank of the store: it cannot partition the graph"
            )
        counts = {t: store.num_nodes(t) for t in store.node_types}
        readers: dict[EdgeType, EdgeReader] = {t: StoreReader(store, t) for t in store.edge_types}
        rows = {
            t: sum(_row_bytes(store.node_table(name, t)) for name in store.node_table_names(t))
            for t in counts
        }
        edge_rows = {
            t: sum(_row_bytes(store.edge_table(name, t)) for name in store.edge_table_names(t))
            for t in readers
        }
        return _build(
            store.group,
            counts,
            readers,
            memory_budget,
            rows if row_bytes is None else row_bytes,
            edge_rows if edge_row_bytes is None else edge_row_bytes,
            contents or {},
            options,
        )

    def node_rows(self, table: Table | Tensor, node_type: NodeType = NODE) -> PartitionedTensor:
        """Returns the rows of a table of nodes, of which each rank reads its own. One-sided.

        If the graph is offloaded, rows of several floats that do not fit on the device are read
        where they are whenever a pass needs them: a table, and a contiguous tensor on the CPU,
        pinned or pageable or a mapped file, are not copied, and must not be changed. Other tensors
        are copied to the host. Labels, masks, ids and other rows of one element stay on the device.

        Args:
            table: [nodes, ...]: a store's table, read from any tier, or a tensor on any device that
                is equal on all ranks.
            node_type: of the rows.

        Raises:
            ValueError: another number of rows.
            MemoryError: an offloaded graph has no room for the rows of a tensor that is copied.
        """
        return self._rows(table, self.node_layouts[node_type], f"rows of the nodes {node_type!r}")

    def edge_rows(self, table: Table | Tensor, edge_type: EdgeType = EDGE) -> PartitionedTensor:
        """Returns the rows of a table of edges; otherwise as :meth:`node_rows`."""
        return self._rows(table, self.edge_layouts[edge_type], f"rows of the edges {edge_type}")

    def _rows(self, table: Table | Tensor, layout: RowLayout, what: str) -> PartitionedTensor:
        if table.shape[:1] != (layout.size,):
            raise ValueError(f"table must have {layout.size} rows, got shape {list(table.shape)}")
        if self.offloaded is not None and is_offloaded(table):
            return self.offloaded.rows(table, layout, what)
        return from_local(read_rows(table, layout.positions).to(layout.group.device), layout)

    def __repr__(self) -> str:
        nodes = sum(layout.size for layout in self.node_layouts.values())
        edges = sum(layout.size for layout in self.edge_layouts.values())
        return (
            f"FullGraph({nodes} nodes, {edges} edges, order {self.order.name}, "
            f"rank {self.group.rank} of {self.group.world_size})"
        )


@collective("FullGraph.build")
def _build(
    group: Group,
    num_nodes: dict[NodeType, int],
    readers: dict[EdgeType, EdgeReader],
    memory_budget: int | None,
    row_bytes: Mapping[NodeType, int] | None,
    edge_row_bytes: Mapping[EdgeType, int] | None,
    contents: Mapping[str, Any],
    user_options: FullGraphOptions,
) -> FullGraph:
    group = WorldGroup.of(group)

    def check() -> tuple[FullGraphOptions, dict[NodeType, str | Tensor]]:
        options = all_options(user_options)
        return options, check_order(options["order"], num_nodes)

    options, orders = collective_call(group, check)
    agree_on_graph(group, num_nodes, readers, orders, memory_budget, contents, options)
    is_auto = any(isinstance(order, str) and order == "auto" for order in orders.values())
    with _progress(group, readers, is_auto, options["progress"]) as step:
        shares = _read_shares(group, readers, step)
        check_ends(group, num_nodes, shares)
        chooser = OrderChooser(group, num_nodes, shares, options["seed"], step)
        chosen = chooser.choose(orders)
        facts = GraphFacts(
            {t: counts for t, (_, counts) in chosen.parts.items()},
            chosen.volumes,
            row_bytes or {},
            edge_row_bytes or {},
            chosen.name,
            chosen.reason,
            group.machines.ranks,
        )
        count = partial(sample_rows, group, chosen.parts, chooser.degrees, shares)
        plan = _plan(group, facts, memory_budget, options, count)
        del chooser, count  # their memory is for the structure
        # With rows in host memory, each rank gets the rows of a chunk directly from their owners.
        recorder = options["model"]
        layouts = {t: RowLayout.from_order(group, *parts) for t, parts in chosen.parts.items()}
        for layout in layouts.values():
            layout.by_machine = plan.offload is None
        edges = {t: reader.num_edges for t, reader in readers.items()}
        structures = _build_structures(layouts, shares, edges, plan, step)
    if group.rank == 0 and not isinstance(recorder, ModelRecorder):
        _logger.info("full graph, nodes ordered by %s: %s", chosen.name, plan)
    if isinstance(recorder, ModelRecorder) and recorder.offloads:
        offloaded = recorder.offload(group, layouts, structures)
    elif plan.offload is None:
        return FullGraph(group, layouts, structures, chosen, plan)
    else:
        offloaded = OffloadedGraph(
            group,
            plan.offload.num_chunks,
            layouts,
            structures,
            partial(
                make_allocator,
                group,
                plan.offload,
                folder=options["folder"],
                hidden_dtype=options["hidden_dtype"],
            ),
            plan.offload.features_on_device,
        )
    return FullGraph(group, layouts, offloaded.structures, chosen, plan, offloaded)


@contextmanager
def _progress(
    group: Group, readers: dict[EdgeType, EdgeReader], is_auto: bool, progress: bool | None
) -> Iterator[Callable[[int], None]]:
    """Within the context, a bar of passes over the edges; gives what moves it by edges."""
    share_bytes = _EDGE_BYTES * _num_edges(readers) // group.world_size
    total = (_PASSES + _MORE_PASSES * (is_auto and group.world_size > 1)) * share_bytes
    with progress_bar("partitioning", total, progress if group.rank == 0 else False) as bar:

        def step(edges: int) -> None:
            bar(edges * _EDGE_BYTES)

        yield step


def _num_edges(readers: dict[EdgeType, EdgeReader]) -> int:
    return sum(reader.num_edges for reader in readers.values())


def _read_shares(
    group: Group, readers: dict[EdgeType, EdgeReader], step: Callable[[int], None]
) -> dict[EdgeType, Share]:
    """Returns this rank's share of the edges of each relation. Collective."""
    num_edges = _num_edges(readers)
    # Shares that are kept take memory of the ones after them: of large ones, look anew.
    shares: dict[EdgeType, Share] = {}
    free = min(group.all_gather(_free_memory(group)))
    for edge_type, reader in readers.items():
        if shares and reader.num_edges > group.world_size * _MANY_EDGES:
            free = min(group.all_gather(_free_memory(group)))
        shares[edge_type] = _read(reader, group, num_edges, free)
        free -= -(-reader.num_edges // group.world_size) * _EDGE_BYTES  # equal on all ranks
        step(shares[edge_type].num_edges)
    return shares


def _plan(
    group: Group,
    facts: GraphFacts,
    memory_budget: int | None,
    options: FullGraphOptions,
    count: Callable[[], Sequence[Duplication]],
) -> FullGraphPlan:
    """Returns the plan for what the ranks and their hosts have. Collective.

    Args:
        count: counts the rows that chunks need, if rows are offloaded.
    """
    hidden_dtype, mode, model = options["hidden_dtype"], options["mode"], options["model"]
    assert not isinstance(model, torch.nn.Module)  # as it was checked
    if isinstance(model, ModelRecorder):
        return FullGraphPlan.make(facts, group_topology(group, options["topology"]))
    return FullGraphPlan.make(
        facts,
        group_topology(group, options["topology"]),
        PlanLimits(
            hidden_bytes=None if hidden_dtype is None else hidden_dtype.itemsize,
            memory_budget=device_budget(group, memory_budget),
            mode=mode,
            modes=_modes(group, mode),
            offload=options["offload"],
            num_chunks=options["num_chunks"],
            host_memory=host_budget(group, options["host_memory"]),
            file_memory=file_budget(group, options["folder"]),
        ),
        model=model,
        assumed=assumed_model,
        spreads=lambda: [spread_of(rows, facts) for rows in count()],
    )


def _build_structures(
    layouts: dict[NodeType, RowLayout],
    shares: dict[EdgeType, Share],
    edges: Mapping[EdgeType, int],
    plan: FullGraphPlan,
    step: Callable[[int], None],
) -> dict[EdgeType, PartitionedCsc]:
    """Returns the structure of each relation; takes the shares. Collective."""
    structures: dict[EdgeType, PartitionedCsc] = {}
    rows = {t: layouts[t[0]].size + layouts[t[2]].size for t in edges}
    sizes = {t: rows[t] + num_edges // len(layouts[t[2]].counts) for t, num_edges in edges.items()}
    for together in batches(sizes, PIECE_EDGES):
        steps = []
        count = sum(shares[edge_type].num_edges for edge_type in together)
        for edge_type in together:
            choice: ModeChoice = plan.mode
            if plan.chooses_by_width:
                choice = cache(partial(plan.mode_for, edge_type))
            of_type = structure_steps(
                layouts[edge_type[0]],
                layouts[edge_type[2]],
                shares.pop(edge_type),  # its memory is for the rows of nodes
                choice,
                ids_on_host=plan.offload is not None,
            )
            steps.append(of_type)
        group = layouts[together[0][0]].group
        structures |= zip(together, run_side_by_side(group, steps), strict=True)
        step(count)
    return structures


def _free_memory(group: Group) -> int:
    """Returns the free bytes of this rank's device, or its part of the host's."""
    if group.device.type == "cuda":
        return free_gpu_memory(group.device)
    return free_host_memory() // group.node_group.world_size


def _read(reader: EdgeReader, group: Group, num_edges: int, free: int) -> Share:
    """Returns this rank's share.

    One that takes much of the memory is kept in narrow numbers while the structure is made; one for
    which there is no memory even so is read anew at each use.

    Args:
        reader: of a relation.
        num_edges: of all relations.
        free: bytes on each rank.
    """
    edges = -(-reader.num_edges // group.world_size)
    if edges * _BYTES_OF_KEPT_EDGE <= free:
        return reader.read(group.rank, group.world_size, group.device)
    pieces = -(-edges // PIECE_EDGES)
    keeps = num_edges // group.world_size * _BYTES_OF_NARROW_EDGE <= free
    return UnreadShare(reader, group.rank, group.world_size, group.device, pieces, keeps)


def _modes(group: Group, asked: str | None) -> tuple[str, ...]:
    """Returns the modes of exchange that the ranks can use. Collective.

    ``in_kernel`` is for GPUs that reach each other's memory; CPU ranks use it if it is asked for.
    """
    if group.node_group is not group:
        return STAGED_MODES
    if group.device.type == "cpu":
        reads = asked == "in_kernel" and PeerAccess.of(group).is_full
        return MODES if reads else STAGED_MODES
    copies = isinstance(Transport.of(group), CopyTransport)
    reached = PeerAccess.of(group).is_full
    return MODES if all(group.all_gather(reached and copies)) else STAGED_MODES


def _row_bytes(table: Table) -> int:
    return int(torch.Size(table.shape[1:]).numel()) * table.dtype.itemsize
