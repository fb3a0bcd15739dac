"""Layers of several relations: the rows of sources are exchanged once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.aggregate.ops.operands import autocast
from peergraph.fullgraph.exchange.halo import Halo, HaloPlan
from peergraph.fullgraph.exchange.local_operands import ReplicasTogether, local_operands
from peergraph.fullgraph.exchange.machine_halo import make_halo
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.memory.device.default_machine import WORK


class Relation(Protocol):
    """The edges of a relation on this rank: what :class:`PartitionedCsc` has of them."""

    plan: Halo
    local: Csc

    @property
    def source_layout(self) -> RowLayout:
        """The rows of sources."""

    def mode_for(self, row_bytes: int) -> str:
        """Returns how rows of so many bytes are exchanged."""

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned at the first call with this key."""


_current: ContextVar[SharedRows | None] = ContextVar("shared rows", default=None)


@contextmanager
def share_rows(
    structures: Sequence[Relation], parameters: Sequence[Tensor]
) -> Iterator[SharedRows]:
    """Within the context, sums of the relations of a layer exchange the rows of sources once.

    Rows that several relations read are exchanged at the first sum, as the union of what they need,
    where that is cheaper than an exchange for each. Their gradients are added on each rank and
    return to the owners at once; so do the gradients of parameters. Nothing is kept after the
    context, in which the features must not be changed. All ranks enter it.

    Args:
        structures: the relations of the layer.
        parameters: those of the layer.
    """
    shared = SharedRows(structures, parameters)
    token = _current.set(shared)
    try:
        yield shared
    finally:
        _current.reset(token)


def current_sharing() -> SharedRows | None:
    """Returns the sharing of the layer that runs, or None."""
    return _current.get()


class SharedRows:
    """The rows that a layer has exchanged: see :func:`share_rows`."""

    def __init__(self, structures: Sequence[Relation], parameters: Sequence[Tensor]) -> None:
        unique = {id(structure): structure for structure in structures}
        by_layout: dict[int, list[Relation]] = {}
        for structure in unique.values():
            by_layout.setdefault(id(structure.source_layout), []).append(structure)
        self._relations = {id(s): same for same in by_layout.values() for s in same}
        self._edges: dict[int, tuple[Halo, dict[int, Csc]]] = {}
        self._parameters = ReplicasTogether(parameters, structures[0].plan.row_layout.group)
        self._rows: dict[Any, tuple[PartitionedTensor, Tensor]] = {}

    def enter(self, parameter: Tensor | None) -> Tensor | None:
        """Returns a parameter of the layer for computations on local rows; None for others."""
        return self._parameters.enter(parameter)

    def sources(
        self, structure: Relation, x: PartitionedTensor, columns: int
    ) -> tuple[Tensor, Csc] | None:
        """Returns the extended rows of `x` for all relations, and the edges of one from them.

        Collective. Differentiable.

        Args:
            structure: the relation.
            x: features of its sources.
            columns: of the rows that the relation exchanged alone.

        Returns:
            None if the relation exchanges its rows alone.
        """
        relations = self._relations.get(id(structure), [])
        if len(relations) < 2:
            return None
        layout = structure.source_layout
        modes = (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(layout.group.device.type),
        )
        # Tensors of inference mode count no writes; a layer makes none.
        key = id(x), 0 if x.is_inference() else x._version, modes
        if key not in self._rows:
            most = max(_rows_of_others(relation.plan) for relation in relations)
            can_share = _can_share(relations, columns * x.itemsize)
            if not can_share or not _pays(most, relations, x, columns):
                return None
            plan, _ = self._joined(relations)
            if not _pays(_rows_of_others(plan), relations, x, columns):
                return None
            [extended], _ = local_operands(plan, [autocast(x.to_local())])
            assert extended is not None
            self._rows[key] = x, extended
        return self._rows[key][1], self._joined(relations)[1][id(structure)]

    def _joined(self, relations: list[Relation]) -> tuple[Halo, dict[int, Csc]]:
        """Returns the plan for the rows of several relations, and the edges of each from them."""
        key = id(relations[0].source_layout)
        if key not in self._edges:
            plan, edges = join_once(relations)
            self._edges[key] = plan, dict(zip(map(id, relations), edges, strict=True))
        return self._edges[key]


def join_once(structures: Sequence[Relation]) -> tuple[Halo, list[Csc]]:
    """Returns a plan for the sources of several structures, and their edges from its rows.

    Collective at the first call, whose result is kept.
    """
    if len(structures) == 1:
        return structures[0].plan, [structures[0].local]
    plans = [structure.plan for structure in structures]
    relations = [structure.local for structure in structures]
    # The relations are kept too, so that no others get their ids.
    key = ("joined", *map(id, relations))
    joined_and_relations = structures[0].cached(key, lambda: (_join(plans, relations), relations))
    joined: tuple[Halo, list[Csc]] = joined_and_relations[0]
    return joined


def _join(plans: Sequence[Halo], relations: Sequence[Csc]) -> tuple[Halo, list[Csc]]:
    """Returns one plan for the rows that all relations need, and their edges from its rows.

    Collective. Offsets and edge ids are shared with the given relations.

    Args:
        plans: by relation, over one layout.
        relations: the edges of each, from extended rows of its plan.
    """
    if all(plan.is_empty for plan in plans):
        return plans[0], list(relations)
    layout = plans[0].row_layout
    joined_plan, extended = make_halo(layout, torch.cat([plan.halo_rows for plan in plans]))
    own = torch.arange(layout.local_count, device=extended.device, dtype=extended.dtype)
    joined = []
    halos = split_rows(extended, [len(plan.halo_rows) for plan in plans])
    for relation, halo in zip(relations, halos, strict=True):
        indices = torch.cat([own, halo])[relation.indices.long()].to(relation.indices.dtype)
        joined.append(
            Csc(
                relation.indptr,
                indices,
                joined_plan.num_extended,
                edge_ids=relation.edge_ids,
                max_chunks=relation.max_chunks,
                check=False,
            )
        )
    return joined_plan, joined


def _can_share(relations: Sequence[Relation], row_bytes: int) -> bool:
    """Returns whether all relations exchange rows, and get them from their owners."""
    return all(
        isinstance(relation.plan, HaloPlan) and relation.mode_for(row_bytes) != "in_kernel"
        for relation in relations
    )


def _pays(together: int, relations: Sequence[Relation], x: PartitionedTensor, columns: int) -> bool:
    """Returns whether one exchange is cheaper than one for each relation; equal on all ranks.

    Args:
        together: rows of the exchange for all, or fewer.
        columns: of the rows that each relation exchanges alone.
    """
    alone = sum(_rows_of_others(relation.plan) for relation in relations) * columns
    width = x.shape[1:].numel()
    saved = WORK.exchange_bytes * (len(relations) - 1)
    pays: bool = 0 < together * width * x.itemsize <= alone * x.itemsize + saved
    return pays


def _rows_of_others(plan: Halo) -> int:
    """Returns how many rows the rank gets that gets most."""
    return max(map(sum, plan.demand)) if isinstance(plan, HaloPlan) else 0
