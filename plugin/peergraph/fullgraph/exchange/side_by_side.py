"""Collective computations that run side by side, so that their exchanges are one.

The structures of hundreds of relations take as many exchanges as that of one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.transport import Transport, as_bytes
from peergraph.fullgraph.layout.ranks import Ranks

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Gather:
    """Asks for every rank's value, in a list: :meth:`Ranks.all_gather`."""

    value: Any


@dataclass(frozen=True)
class AllToAll:
    """Asks for tensors of all ranks: :meth:`Transport.all_to_all`."""

    outputs: list[Tensor]
    inputs: list[Tensor]


@dataclass(frozen=True)
class AllReduce:
    """Asks for the sum of a tensor over all ranks: :meth:`Transport.all_reduce`."""

    tensor: Tensor


Request = Gather | AllToAll | AllReduce
Steps = Generator[Request, Any, T]
"""A computation that yields requests to all ranks and is sent their results; it may call
collectives itself, too."""


def batches(sizes: Mapping[K, int], limit: int) -> Iterator[list[K]]:
    """Yields keys of computations that run side by side: some small ones, or one large one.

    Args:
        sizes: of each computation, equal on all ranks.
        limit: of the sum of the sizes of several.
    """
    together, total = list[K](), 0
    for key, size in sizes.items():
        if together and total + size > limit:
            yield together
            together, total = [], 0
        together.append(key)
        total += size
    if together:
        yield together


def run_alone(group: Ranks, steps: Steps[T]) -> T:
    """Returns the result of a computation. Collective."""
    return run_side_by_side(group, [steps])[0]


def run_side_by_side(group: Ranks, computations: Sequence[Steps[T]]) -> list[T]:
    """Returns the results of computations, whose requests of one kind go together. Collective.

    Args:
        computations: on all ranks the same ones, which yield requests of the same kinds.
    """
    results: dict[int, T] = {}
    running = dict(enumerate(computations))
    answers: dict[int, Any] = dict.fromkeys(running)
    while running:
        requests: dict[int, Request] = {}
        for number, steps in list(running.items()):
            try:
                requests[number] = steps.send(answers.pop(number))
            except StopIteration as stop:
                results[number] = stop.value
                del running[number]
        answers = _answer(group, requests)
    return [results[number] for number in range(len(computations))]


def _answer(group: Ranks, requests: dict[int, Request]) -> dict[int, Any]:
    """Returns the results of requests, by the same numbers. Collective."""
    transport = Transport.of(group)
    answers: dict[int, Any] = dict.fromkeys(requests)
    values = {n: request.value for n, request in requests.items() if isinstance(request, Gather)}
    if values:
        everyone = group.all_gather(list(values.values()))
        for place, number in enumerate(values):
            answers[number] = [of_rank[place] for of_rank in everyone]
    exchanges = [request for request in requests.values() if isinstance(request, AllToAll)]
    if len(exchanges) == 1:
        transport.all_to_all(exchanges[0].outputs, exchanges[0].inputs)
    elif exchanges:
        _exchange(transport, exchanges)
    sums: dict[torch.dtype, dict[int, Tensor]] = {}
    for number, request in requests.items():
        if isinstance(request, AllReduce):
            sums.setdefault(request.tensor.dtype, {})[number] = request.tensor
    for tensors in sums.values():
        total = transport.all_reduce(torch.cat([tensor.reshape(-1) for tensor in tensors.values()]))
        parts = torch.split(total, [tensor.numel() for tensor in tensors.values()])
        for (number, tensor), part in zip(tensors.items(), parts, strict=True):
            answers[number] = part.view(tensor.shape)
    return answers


def _exchange(transport: Transport, exchanges: list[AllToAll]) -> None:
    """Exchanges the tensors of several requests at once, as bytes."""
    ranks = range(transport.group.world_size)
    nothing = torch.empty(0, dtype=torch.uint8, device=transport.group.device)
    inputs, outputs = list[Tensor](), list[Tensor]()
    for rank in ranks:
        sent = [as_bytes(e.inputs[rank].contiguous()) for e in exchanges if e.inputs[rank].numel()]
        inputs.append(torch.cat([nothing, *sent]))
        outputs.append(nothing.new_empty(sum(e.outputs[rank].nbytes for e in exchanges)))
    transport.all_to_all(outputs, inputs)
    for rank in ranks:
        parts = torch.split(outputs[rank], [e.outputs[rank].nbytes for e in exchanges])
        for exchange, part in zip(exchanges, parts, strict=True):
            if part.numel():
                as_bytes(exchange.outputs[rank]).copy_(part)
