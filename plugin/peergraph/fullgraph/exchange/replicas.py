"""Parameters are plain tensors of which every rank has a replica: whether these stay equal."""

from __future__ import annotations

import warnings
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from peergraph.fullgraph.exchange.transport import Transport, reductions_of
from peergraph.fullgraph.layout.content_digest import device_digest
from peergraph.fullgraph.layout.ranks import Ranks

# The host queues work of a GPU ahead: it waits for the result of the comparison that many before.
_IN_FLIGHT = 4
# Of the largest value. Replicas that rounding has moved apart differ by less.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_ROUNDING_OF_OTHERS = 1e-2


class _Comparison(NamedTuple):
    """A comparison of which the result may be on its way from the GPU."""

    differ: Tensor
    arrival: torch.cuda.Event | None
    parameters: list[Parameter]


class Replicas:
    """The parameters that have been used on a group's ranks since the last comparison.

    Users write into parameters in ways that nobody sees (``.data``, `reset_parameters`,
    `load_state_dict` on one rank). So the values themselves are compared, in each pass: their
    digests travel beside the first sum over ranks that follows the parameters' use, the loss in
    general. On CPUs an error is raised there; a GPU is not synchronised, and a comparison's result
    is read at the fourth one after it.
    """

    def __init__(self, group: Ranks) -> None:
        self._group = group
        self._used: dict[int, Parameter] = {}
        self._comparisons: deque[_Comparison] = deque()

    @staticmethod
    def of(group: Ranks) -> Replicas:
        """Returns the replicas of a group's ranks, always the same object. Not collective."""
        replicas: Replicas | None = group.shared.get(Replicas)
        if replicas is None:
            replicas = group.shared[Replicas] = Replicas(group)
        return replicas

    def note(self, parameter: Parameter) -> None:
        """Notes that a parameter is used. Not collective; in the same order on all ranks."""
        self._used[id(parameter)] = parameter  # which lives until the comparison

    def compare(self) -> None:
        """Compares the parameters that were used since the last call. Collective.

        Replicas that differ by rounding become equal to rank 0's, with a warning.

        Raises:
            ValueError: on all ranks, if replicas differ.
        """
        if not self._used:
            return
        parameters = list(self._used.values())
        self._used.clear()
        transport, device = Transport.of(self._group), self._group.device
        digest = device_digest([parameter.detach().to(device) for parameter in parameters])
        largest = transport.all_reduce(torch.cat([digest, ~digest]), "max")
        differ = (largest[:2] != ~largest[2:]).any()
        arrival = None
        if differ.is_cuda:
            on_host = torch.empty_like(differ, device="cpu", pin_memory=True)
            differ = on_host.copy_(differ, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        self._comparisons.append(_Comparison(differ, arrival, parameters))
        while len(self._comparisons) > (_IN_FLIGHT if arrival is not None else 0):
            self._finish(self._comparisons.popleft())

    def _finish(self, comparison: _Comparison) -> None:
        """Waits for the result of a comparison, and settles differences. Collective then."""
        if comparison.arrival is not None:
            comparison.arrival.synchronize()
        if comparison.differ:
            self._comparisons.clear()
            self._settle(comparison.parameters)

    def _settle(self, parameters: list[Parameter]) -> None:
        """Makes replicas equal that differ by rounding; raises for others. Collective."""
        shapes = self._group.all_gather([(tuple(p.shape), str(p.dtype)) for p in parameters])
        if any(of_rank != shapes[0] for of_rank in shapes):
            raise ValueError("parameters have other shapes or dtypes on other ranks")
        transport, firsts, distances = Transport.of(self._group), [], []
        for parameter in parameters:
            first = parameter.detach().to(self._group.device).contiguous().clone()
            transport.broadcast(first)
            firsts.append(first)
            distances.append(_distance(parameter.detach(), first.to(parameter.device)))
        by_rank = self._group.all_gather(distances)
        texts = []
        for place, parameter in enumerate(parameters):
            ranks = [rank for rank, of_rank in enumerate(by_rank) if of_rank[place] > 1]
            if ranks:
                names = ", ".join(map(str, ranks))
                texts.append(f"one of shape {list(parameter.shape)} on rank {names}")
        if texts:
            raise ValueError(
                f"parameters differ from those of rank 0: {'; '.join(texts)}. Some ranks have "
                "written to them alone (reset_parameters, load_state_dict, .data, an optimizer's "
                "step): do the same with the same seeds on all ranks, or call "
                "torch.distributed.broadcast(parameter.data, 0)"
            )
        warnings.warn(
            "rounding has moved parameters of the ranks apart, so rank 0's are taken", stacklevel=2
        )
        for parameter, first in zip(parameters, firsts, strict=True):
            parameter.data.copy_(first)  # raises no version: a backward pass may follow


def sum_of_ranks(tensor: Tensor, group: Ranks) -> Tensor:
    """Returns :meth:`Transport.all_reduce`, after a comparison of the parameters. Collective."""
    Replicas.of(group).compare()
    return reductions_of(group).all_reduce(tensor)


def _distance(values: Tensor, first: Tensor) -> float:
    """Returns how far values are from the first rank's; up to 1 it is rounding."""
    if torch.equal(values, first):
        return 0.0
    tolerance = _ROUNDING.get(values.dtype, _ROUNDING_OF_OTHERS) * first.abs().max()
    excess = (values - first).abs().max() / tolerance
    return float(excess) if bool(excess.isfinite()) else float("inf")
