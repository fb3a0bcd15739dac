"""`share_graph`: turns one rank's graph of a framework into a graph of all ranks over one store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from peergraph.memory.group.collective_call import collective_call_machines
from peergraph.memory.group.content import describe_content
from peergraph.memory.group.group import Group
from peergraph.memory.group.machine_broadcast import MachineBroadcast
from peergraph.memory.group.values import disagreement
from peergraph.store.build.machine_source import Sending
from peergraph.store.input.source import GraphSource
from peergraph.store.placement.options import PlacementOptions, complete_options
from peergraph.store.store import Store

Outline = TypeVar("Outline")
Graph = TypeVar("Graph")


@dataclass(frozen=True)
class SplitGraph(Generic[Outline]):
    """A graph split into a part to pickle, the contents of the store, and tensors to send.

    Args:
        outline: the part that is pickled and sent to all ranks.
        source: the contents of the store.
        tensors: the tensors that rank 0 of each machine gets, on the CPU.
        contents: the values of the outline, by the name that errors show; machines compare them.
    """

    outline: Outline
    source: GraphSource
    tensors: Sequence[Tensor] = ()
    contents: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Outlined:
    """The outline as it is sent, with the shapes and dtypes of the tensors that follow it."""

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
    """Builds a store of rank 0's graph on each machine, and makes each rank's graph over the store.

    Collective over all ranks of all machines.

    Args:
        split: splits the graph; called on rank 0 of each machine that has the graph.
        join: makes a rank's graph; called on every rank with a copy of the outline, the tensors
            (none on ranks other than rank 0) and the store.
        brings: whether this rank has the graph; only rank 0 of each machine is asked. Machines
            without the graph get it from the first machine that has it.
        device: the device, as in ``peergraph.memory.Group.current``.
        timeout: seconds to wait for the other ranks.
        progress: whether to show progress bars of long loads; default: if stderr is a terminal.
        options: see :class:`peergraph.store.PlacementOptions`.

    Returns:
        The result of `join`.

    Raises:
        TypeError: an unknown keyword.
        Exception: an error of `split` on rank 0, of pickling the outline or of building the store
            is raised on all ranks.
        ValueError: the machines have different graphs.
    """
    complete = complete_options(options)
    group = Group.current(device=device, timeout=timeout)

    with group.collective("share"):
        sending = Sending.find(brings and group.rank == 0, group)
        # If no machine has a graph, `split` raises the error.
        gets = sending is not None and group.machines.rank in sending.receivers
        parts: SplitGraph[Outline] | None = collective_call_machines(
            group, lambda: split() if group.rank == 0 and not gets else None
        )
        _check_same_contents(parts, group)
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


def _check_same_contents(parts: SplitGraph[Any] | None, group: Group) -> None:
    """Raises ValueError on all ranks if machines bring other values in the outlines. Collective."""
    if group.machines.count == 1:
        return
    mine = collective_call_machines(
        group,
        lambda: parts and {name: describe_content(value) for name, value in parts.contents.items()},
    )
    everyone = group.all_gather_machines(mine)
    holders = [machine for machine, texts in enumerate(everyone) if texts is not None]
    difference = disagreement(
        [everyone[machine] for machine in holders],
        lambda numbers: " and ".join(group.machines.name(holders[number]) for number in numbers),
    )
    if difference is not None:
        raise ValueError(difference.replace("the ranks disagree", "the machines disagree", 1))


def _pack(parts: SplitGraph[Any]) -> _Outlined:
    return _Outlined(
        pickle.dumps(parts.outline), [(tuple(t.shape), t.dtype) for t in parts.tensors]
    )


def _transfer(
    message: _Outlined | None, tensors: Sequence[Tensor], link: MachineBroadcast
) -> tuple[_Outlined, Sequence[Tensor]]:
    """Sends the outline and the tensors, or receives them."""
    sent: _Outlined = pickle.loads(link.bytes(lambda: pickle.dumps(message)))
    values = iter(tensors)
    return sent, [link.tensor(lambda: next(values), *spec) for spec in sent.specs]
