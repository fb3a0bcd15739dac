"""Gets the graph to every machine: a machine that has no source receives the graph of another.

Every machine has a separate store (WholeGraph III-D). Structure is sent first. Rows of tables are
sent when they are loaded, so that no machine has a table in memory twice.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Group, Machines
from peergraph.memory.distributed.row_set import RowSet
from peergraph.memory.group.collective_call import collective_call, collective_call_machines
from peergraph.memory.group.machine_broadcast import MachineBroadcast
from peergraph.store.build.fingerprint import Fingerprint
from peergraph.store.input.frame_spec import Frames
from peergraph.store.input.schema import TableSpec
from peergraph.store.input.source import (
    EdgeSource,
    EdgeType,
    GraphSource,
    NodeType,
    RowSource,
)


@dataclass(frozen=True)
class Sending:
    """The rank that sends its graph, and the first ranks of the machines that receive it. Ranks are
    numbered as in torch.distributed.
    """

    name: str
    sender: int
    receivers: tuple[int, ...]

    @classmethod
    def find(cls, brings: bool, group: Group) -> Sending | None:
        """Finds the machines without a graph. Collective over all machines.

        Args:
            brings: whether this rank has a graph.

        Returns None if all machines have a graph, or no machine has one.
        """
        machines = group.machines
        if machines.count == 1:
            return None
        bringing = [rank for rank, has in enumerate(group.all_gather(brings)) if has]
        first = group.all_gather_machines(bringing[0] if bringing else None)
        givers = [m for m, rank in enumerate(first) if rank is not None]
        lacking = [m for m, rank in enumerate(first) if rank is None]
        if not givers or not lacking:
            return None
        sender = machines.ranks[givers[0]][first[givers[0]]]
        return cls(machines.next_name(), sender, tuple(machines.ranks[m][0] for m in lacking))

    @contextmanager
    def connect(self, group: Group) -> Iterator[MachineBroadcast | None]:
        """Yields the connection on the ranks that send or receive, and None on the others."""
        rank = group.machines.rank
        if rank != self.sender and rank not in self.receivers:
            yield None
            return
        link = MachineBroadcast(group, self.name, self.sender, self.receivers)
        try:
            yield link
        finally:
            link.close()


@contextmanager
def graph_of_machine(source: GraphSource | None, group: Group) -> Iterator[GraphSource | None]:
    """Yields this rank's source for the store of its machine. Collective over all machines.

    Read the source within the context. Ranks that send must load all tables in order.

    Raises:
        ValueError: the machines have different graphs: sizes, edges or rows of tables differ. Rows
            that a function reads are compared once they are loaded, at the end of the context.
        NotImplementedError: a source would have to be sent that is split over ranks.
    """
    if group.machines.count == 1:
        yield source
        return
    fingerprint = Fingerprint.of(source, group)
    fingerprint.check(group, after_loading=False)
    source = fingerprint.source
    sending = Sending.find(source is not None, group)
    if sending is None:
        yield source
        fingerprint.check(group, after_loading=True)
        return

    def check() -> None:
        is_sender = group.machines.rank == sending.sender
        if is_sender and source is not None and source.node_range is not None:
            raise NotImplementedError(
                "a source that is split over ranks is not sent to other machines: give each "
                "machine its source, or give rank 0 all of it"
            )

    collective_call_machines(group, check)
    with sending.connect(group) as link:
        mine = collective_call(
            group, lambda: source if link is None else _transfer(source, link, group.machines)
        )
        yield mine
    # Machines that have received rows from another have brought none.
    fingerprint.check(group, after_loading=True)


@dataclass(frozen=True)
class _Outline:
    """A source without its data: the dtypes and lengths of the tensors of each relation."""

    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, dict[str, tuple[tuple[int, ...], torch.dtype]]]
    node_tables: dict[NodeType, dict[str, TableSpec]]
    edge_tables: dict[EdgeType, dict[str, TableSpec]]
    frames: Frames


def _transfer(
    source: GraphSource | None, link: MachineBroadcast, machines: Machines
) -> GraphSource:
    """Sends or receives the structure. Rows of tables are sent later, when they are read."""
    message = link.bytes(lambda: pickle.dumps(_outline(source)))
    outline: _Outline = pickle.loads(message)
    edges = {
        t: _sent_edges(specs, None if source is None else source.edges[t], link)
        for t, specs in outline.edges.items()
    }
    node_tables = None if source is None else source.node_tables
    edge_tables = None if source is None else source.edge_tables
    return GraphSource(
        outline.num_nodes,
        edges,
        {t: _sent_rows(s, t, node_tables, link, machines) for t, s in outline.node_tables.items()},
        {t: _sent_rows(s, t, edge_tables, link, machines) for t, s in outline.edge_tables.items()},
        frames=outline.frames,
    )


def _outline(source: GraphSource | None) -> _Outline:
    assert source is not None
    return _Outline(
        {t: int(n) for t, n in source.num_nodes.items()},
        {
            t: {n: (tuple(v.shape), v.dtype) for n, v in _edge_tensors(e).items()}
            for t, e in source.edges.items()
        },
        {t: _specs(tables) for t, tables in source.node_tables.items()},
        {t: _specs(tables) for t, tables in source.edge_tables.items()},
        source.frames,
    )


def _specs(tables: Mapping[str, Tensor | RowSource]) -> dict[str, TableSpec]:
    return {n: TableSpec.of(table) for n, table in tables.items()}


def _edge_tensors(edges: EdgeSource) -> dict[str, Tensor]:
    if edges.coo is not None:
        return {"coo": edges.coo}
    assert edges.csc is not None
    tensors = {"indptr": edges.csc[0], "indices": edges.csc[1]}
    return tensors if edges.edge_ids is None else {**tensors, "edge_ids": edges.edge_ids}


def _sent_edges(
    specs: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    edges: EdgeSource | None,
    link: MachineBroadcast,
) -> EdgeSource:
    own_tensors = {} if edges is None else _edge_tensors(edges)
    tensors = {n: link.tensor(functools.partial(own_tensors.get, n), *s) for n, s in specs.items()}  # type: ignore[arg-type]
    if "coo" in tensors:
        return EdgeSource(coo=tensors["coo"])
    return EdgeSource(csc=(tensors["indptr"], tensors["indices"]), edge_ids=tensors.get("edge_ids"))


@dataclass
class SentRows(RowSource):
    """Rows of a table that one machine has and sends to others, piece by piece.

    Args:
        own_rows: ``own_rows(begin, end, row set)`` returns those of the rows at these positions
            that this machine has. The sender and the receivers call it.
    """

    own_rows: Callable[[int, int, RowSet], Tensor] = field(kw_only=True)


def _sent_rows(
    specs: Mapping[str, TableSpec],
    kind: Any,
    tables: Mapping[Any, Mapping[str, Tensor | RowSource]] | None,
    link: MachineBroadcast,
    machines: Machines,
) -> dict[str, RowSource]:
    """Returns the tables of a type. Reading a piece of their rows sends it."""

    def read(name: str, spec: TableSpec, begin: int, end: int) -> Tensor:
        assert tables is not None
        table = tables[kind][name]
        rows = table.rows(begin, end) if isinstance(table, RowSource) else table[begin:end]
        return _checked(rows, (end - begin, *spec.shape[1:]), spec)

    def rows(name: str, spec: TableSpec, begin: int, end: int) -> Tensor:
        shape = (end - begin, *spec.shape[1:])
        return link.tensor(lambda: read(name, spec, begin, end), shape, spec.dtype)

    def own_rows(name: str, spec: TableSpec, begin: int, end: int, row_set: RowSet) -> Tensor:
        count = end - begin
        receivers = [machines.machine_of(rank) for rank in link.receivers]

        def parts() -> list[Tensor]:
            piece = read(name, spec, begin, end)
            positions_by_machine = [
                row_set.kept_rows(begin, count, m)[0] for m in (machines.index, *receivers)
            ]
            return [piece[positions.to(piece.device)] for positions in positions_by_machine]

        mine = row_set.kept_rows(begin, count)[0].numel()
        return link.scatter(parts, (mine, *spec.shape[1:]), spec.dtype)

    return {
        name: SentRows(
            spec.shape,
            spec.dtype,
            functools.partial(rows, name, spec),
            spec.storage,
            own_rows=functools.partial(own_rows, name, spec),
        )
        for name, spec in specs.items()
    }


def _checked(rows: Tensor, shape: tuple[int, ...], spec: TableSpec) -> Tensor:
    """Raises an error if a user's source did not return the rows that other ranks wait for."""
    if not isinstance(rows, Tensor):
        raise TypeError(f"rows must be a tensor, got {type(rows).__name__}")
    if tuple(rows.shape) != shape or rows.dtype != spec.dtype:
        raise ValueError(
            f"rows must be {list(shape)} of {spec.dtype}, got {list(rows.shape)} of {rows.dtype}"
        )
    return rows
