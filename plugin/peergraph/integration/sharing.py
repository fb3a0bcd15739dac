"""`share_graph`: a framework's graph of one rank becomes a graph of all ranks, over one store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from peergraph.memory.group.collective_call import collective_call_machines
from peergraph.memory.group.group import Group
from peergraph.memory.group.machine_broadcast import MachineBroadcast
from peergraph.store.build.machine_source import Sending
from peergraph.store.input.source import GraphSource
from peergraph.store.placement.options import PlacementOptions, complete_options
from peergraph.store.store import Store

Outline = TypeVar("Outline")
Graph = TypeVar("Graph")


@dataclass(frozen=True)
class SplitGraph(Generic[Outline]):
    """A graph split in what is pickled, what fills the store, and tensors that are sent.

    Args:
        outline: the part that is pickled and sent to all ranks.
        source: what the store is filled with.
        tensors: on the CPU, for rank 0 of each machine.
    """

    outline: Outline
    source: GraphSource
    tensors: Sequence[Tensor] = ()


@dataclass(frozen=True)
class _Outlined:
    """The outline as it is sent, and shapes and dtypes of the tensors that follow."""

    outline: bytes
    specs: list[tuple[tuple[int, ...], torch.dtype]]


def share_graph(
    split: Callable[[], SplitGraph[Outline]],
    join: Callable[[Outline, Sequence[Tensor], Store], Graph],
    *,
    brings: bool = True,
    device: Any = None,
    timeout: float | None = None,
    progress: bool | None = None,
    **options: Unpack[PlacementOptions],
) -> Graph:
    """Builds a store of rank 0's graph on each machine, and gives each rank its graph over it.
    Collective over all ranks of all machines.

    Args:
        split: takes the graph apart; called on rank 0 of each machine that brings the graph.
        join: called on every rank with its copy of the outline, rank 0's tensors (none on the
            other ranks) and the store.
        brings: whether this rank has the graph; counts on rank 0 of each machine. Machines that
            have none get it from the first one that has.
        device: as ``peergraph.memory.Group.current`` takes it.
        timeout: seconds to wait for the other ranks.
        progress: whether long loads show bars; default: where stderr is a terminal.
        options: see :class:`peergraph.store.PlacementOptions`.

    Returns:
        What `join` returned.

    Raises:
        TypeError: an unknown keyword.
        Exception: whatever `split` raises on rank 0 is raised on all ranks, as are errors of
            pickling the outline and of building the store.
        ValueError: the machines bring different graphs.
    """
    complete = complete_options(options)
    group = Group.current(device=device, timeout=timeout)

    with group.collective("share"):
        sending = Sending.find(brings and group.rank == 0, group)
        # Where no machine has a graph, `split` says so.
        gets = sending is not None and group.machines.rank in sending.receivers
        parts: SplitGraph[Outline] | None = collective_call_machines(
            group, lambda: split() if group.rank == 0 and not gets else None
        )
        message = collective_call_machines(group, lambda: None if parts is None else _pack(parts))
        tensors = () if parts is None else parts.tensors
        if sending is not None:
            with sending.connect(group) as link:
                if link is not None:
                    message, tensors = _transfer(message, tensors, link)
        message = group.broadcast(message)
        source = None if parts is None else parts.source
        store = Store.build(source, group=group, progress=progress, **complete)
        return join(pickle.loads(message.outline), tensors, store)


def _pack(parts: SplitGraph[Any]) -> _Outlined:
    return _Outlined(
        pickle.dumps(parts.outline), [(tuple(t.shape), t.dtype) for t in parts.tensors]
    )


def _transfer(
    message: _Outlined | None, tensors: Sequence[Tensor], link: MachineBroadcast
) -> tuple[_Outlined, Sequence[Tensor]]:
    """Sends the outline and the tensors, or receives them."""
    sent: _Outlined = pickle.loads(link.bytes(lambda: pickle.dumps(message)))
    given = iter(tensors)
    return sent, [link.tensor(lambda: next(given), *spec) for spec in sent.specs]
