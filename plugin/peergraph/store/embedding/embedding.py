"""Embeddings: tables of a store that are trained in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from peergraph.autograd import Function
from peergraph.memory import Group, Table
from peergraph.memory.device.launching import DTYPES
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.naming import collective
from peergraph.memory.region.closing import close_all
from peergraph.memory.training.coalesce import accumulator
from peergraph.memory.training.trained_table import TrainedTable, owned_tiers
from peergraph.number_arguments import check_number
from peergraph.store.embedding.initial_values import Init, load_share, write_initial
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.input.schema import TableSpec
from peergraph.store.input.source import NODE, NodeType, RowSource
from peergraph.store.placement.items import table_name
from peergraph.store.placement.plan import Plan
from peergraph.store.placement.planner import partitions_in_reach, place_table

# The number of state tensors of Adam; "auto" leaves room for them.
_MOST_STATES = 2


@dataclass
class RowState:
    """The state of an optimizer for an embedding.

    Args:
        optimizer: the optimizer's name.
        step: the number of steps with gradients so far.
        tables: the tables of the state, by name. They have the rows of the embedding.
        restored: whether it came from disk and no optimizer uses it yet.
        release: frees the optimizer's buffers. Collective.
    """

    optimizer: str
    step: int = 0
    tables: dict[str, Table] = field(default_factory=dict)
    restored: bool = False
    release: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Collective."""
        close_all((self.release, *(table.close for table in self.tables.values())))


_MOST_ROWS, _MOST_COLUMNS = 1 << 48, (1 << 31) - 1


class EmbeddingOwner(Protocol):
    """The part of :class:`peergraph.store.Store` that an embedding uses."""

    group: Group | None
    embeddings: dict[tuple[NodeType, str], Embedding]

    @property
    def plan(self) -> Plan:
        """The tier of each row."""

    def num_nodes(self, node_type: NodeType = ...) -> int:
        """Returns the number of nodes of a type."""

    def id_map(self, node_type: NodeType = ...) -> IdMap:
        """Returns the renumbering of a node type."""


class Embedding(nn.Module):
    """Trained rows in the memory of all ranks: ``torch.nn.Embedding(sparse=True)`` for tables as
    large as a store's.

    ``embedding(ids)`` gathers rows. The backward pass keeps the gradients of these rows, on the
    rank that has read them, until an optimizer of :mod:`peergraph.optim` sends them to the ranks
    that own the rows. The rows are not a parameter of the module: other optimizers and
    DistributedDataParallel do not see them, and :meth:`torch.nn.Module.to` does not move them.
    """

    @collective("Embedding")
    def __init__(
        self,
        store: EmbeddingOwner | Group,
        embedding_dim: int,
        *,
        name: str = "embedding",
        node_type: NodeType = NODE,
        num_embeddings: int | None = None,
        plan: str = "auto",
        dtype: torch.dtype | None = None,
        init: Init = None,
        in_state_dict: bool = True,
    ) -> None:
        """Allocates and fills the rows, on each machine. Collective over all ranks of all machines;
        synchronises.

        Args:
            store: the :class:`peergraph.store.Store` with which the rows are saved and closed. Or
                a group; then :meth:`close` frees the rows.
            embedding_dim: the number of elements of a row.
            name: a name that distinguishes the embeddings of a node type.
            node_type: with a store: the node type. Each of its nodes has a row, which is read by
                the user's node id; rows are placed in the nodes' order of hotness.
            num_embeddings: with a group: the number of rows; with a store: None or the number of
                nodes.
            plan: ``"replicated"``, ``"sharded"``, ``"host"``, or ``"auto"``. ``"auto"`` replicates
                or shards the rows that fit into 60 % of the free GPU memory together with Adam's
                state; without a GPU it keeps one copy in the machine's memory. Optimizer state of
                replicated rows is sharded.
            dtype: float32 (also for None: torch's default), float64, float16 or bfloat16.
            init: None: standard normal. Or a tensor [rows, embedding_dim], on one rank or the same
                on all ranks that pass one. Or a function that fills a tensor in place, such as
                those of :mod:`torch.nn.init`; it is called on pieces of rows. Random numbers come
                from rank 0's generator of torch, and do not depend on the number of ranks or the
                plan.
            in_state_dict: whether :meth:`state_dict` contains all rows, as a tensor ``weight`` on
                the CPU. For large tables pass False, and save the store.

        Raises:
            ValueError: the name is taken, or sizes, dtype or init do not fit, or the ranks pass
                different arguments.
            KeyError: the store has no such node type.
            MemoryError: there is not enough memory.
        """
        super().__init__()
        group = store if isinstance(store, Group) else _group_of(store)
        owner = None if isinstance(store, Group) else store
        dtype = dtype or torch.get_default_dtype()

        def check() -> TableSpec:
            check_number("num_embeddings", num_embeddings, 0, _MOST_ROWS)
            check_number("embedding_dim", embedding_dim, 1, _MOST_COLUMNS)
            rows = _check_rows(owner, name, node_type, num_embeddings)
            return _check_spec(rows, embedding_dim, dtype)

        spec = collective_call(group, check)
        self.num_embeddings, self.embedding_dim = spec.shape
        self.name, self.node_type = name, node_type
        self.plan = plan
        self.in_state_dict = in_state_dict
        self.row_state: RowState | None = None
        order = None
        if owner is not None:
            order = owner.id_map(node_type).to_internal
            partitions = owner.plan.partitions
        else:
            partitions = partitions_in_reach(group)
        copies = 1 if partitions is None else partitions.copies
        room = _with_state(spec)
        tiers = place_table(node_type, name, room, plan, copies, group)
        table = Table.create(
            spec.shape,
            dtype,
            owned_tiers(tiers, group.world_size),
            group,
            order=order,
            partitions=partitions,
            check=False,  # IdMap has checked the order.
        )
        self.trained = TrainedTable(table)
        write_initial(table, init, table_name(node_type, name))
        # Makes autograd call the backward pass. It is not a parameter, so that no other optimizer
        # updates it.
        self._anchors = (torch.zeros(0, device=table.device, requires_grad=True),)
        self._pending: list[tuple[Tensor, Tensor]] = []
        if owner is not None:
            owner.embeddings[node_type, name] = self

    @property
    def table(self) -> Table:
        """The table of the rows. It is read and written by users' ids, without gradients."""
        return self.trained.table

    def tables(self) -> dict[str, Table]:
        """Returns the rows, ``"weight"``, and the optimizer's state."""
        return {"weight": self.table, **(self.row_state.tables if self.row_state else {})}

    @property
    def anchor(self) -> Tensor:
        """An empty tensor that represents the rows in ``param_groups`` of optimizers."""
        return self._anchors[0]

    @property
    def pending(self) -> list[tuple[Tensor, Tensor]]:
        """This rank's ids and gradients of the backward passes since the last ``zero_grad``."""
        return self._pending

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows ``ids``, ``[*ids.shape, embedding_dim]`` on the table's device.
        One-sided.

        Args:
            ids: int32 or int64, any shape, on the CPU or the table's device.

        Asynchronous on a GPU. Raises as :meth:`peergraph.memory.Table.gather` does.
        """
        out: Tensor = _Lookup.apply(self.anchor, self, ids)
        return out

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of this rank."""
        self._pending = []

    def close(self) -> None:
        """Frees rows and optimizer state. Collective."""
        self._pending = []
        state = () if self.row_state is None else (self.row_state.close,)
        close_all((*state, self.table.close))

    def extra_repr(self) -> str:
        """Returns sizes and tiers, for ``repr``."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.table.tiers}"

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.in_state_dict:
            destination[f"{prefix}weight"] = self.table.read()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Collective if the state contains the rows: every rank loads them."""
        if not self.in_state_dict:
            return
        key = f"{prefix}weight"
        weight = state_dict.get(key)
        if weight is None:
            missing_keys.append(key)
            return
        if weight.shape != self.table.shape:
            error_msgs.append(
                f"{key} must have shape {self.table.shape}, got {tuple(weight.shape)}"
            )
            return
        load_rows(self.table, weight.to(self.table.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError(
            "an Embedding is memory of all ranks, and is not copied with a model: keep a copy of "
            "its state_dict(), or have both models use it: copy.deepcopy(model, {id(e): e})"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an Embedding is not pickled: save its state_dict, or the store")


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, embedding: Embedding, ids: Tensor) -> Tensor:
        ctx.embedding = embedding
        rows = embedding.table.gather(ids)
        ctx.save_for_backward(ids)
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.embedding.pending.append((ids, grad))
        return None, None, None


def load_rows(table: Table, rows: Tensor | RowSource) -> None:
    """Writes all rows of a table, each rank its share of the same rows. Collective."""
    group = table.group
    load_share(table, rows, group.rank, group.world_size)
    group.barrier()


def _group_of(store: EmbeddingOwner) -> Group:
    if store.group is None:
        raise RuntimeError("only the ranks that built a store can train its embeddings")
    return store.group


def _check_rows(
    store: EmbeddingOwner | None, name: str, node_type: NodeType, num_embeddings: int | None
) -> int:
    if store is None:
        if num_embeddings is None:
            raise ValueError("num_embeddings must be given where there is no store")
        return num_embeddings
    if (node_type, name) in store.embeddings:
        raise ValueError(f"node type {node_type!r} has an embedding {name!r} already")
    rows = store.num_nodes(node_type)
    if num_embeddings not in (None, rows):
        raise ValueError(
            f"num_embeddings must be {rows}, the nodes of type {node_type!r}, got {num_embeddings}"
        )
    return rows


def _with_state(spec: TableSpec) -> TableSpec:
    """Returns the spec of a table with rows as wide as a row with its Adam state."""
    rows, width = spec.shape
    state = _MOST_STATES * width * accumulator(spec.dtype).itemsize // spec.dtype.itemsize
    return TableSpec((rows, width + state), spec.dtype)


def _check_spec(rows: int, embedding_dim: int, dtype: torch.dtype) -> TableSpec:
    for what, size, least in (("num_embeddings", rows, 0), ("embedding_dim", embedding_dim, 1)):
        if not isinstance(size, int) or size < least:
            raise ValueError(f"{what} must be an int of at least {least}, got {size!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    return TableSpec((rows, embedding_dim), dtype)
