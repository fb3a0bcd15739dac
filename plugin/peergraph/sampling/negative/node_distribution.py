"""The distribution of a random node: weights and times, as the compiled module takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from peergraph.sampling.arguments import check_integer_tensor, store_device
from peergraph.sampling.sample import NodeType

if TYPE_CHECKING:
    from peergraph.store import Store

# Weights become integers whose sum stays below 2**62, so that their running sums are exact.
_WEIGHT_BITS = 61


@dataclass(frozen=True)
class NodeDistribution:
    """The distribution of one endpoint of a negative edge.

    Args:
        num_nodes: the number of nodes of the type.
        ends: [num_nodes] int64 running sum of integer weights; None: uniform.
        times: [num_nodes] int64; None: nodes have no times.
        earliest: the first node with the smallest time.
    """

    num_nodes: int
    ends: Tensor | None
    times: Tensor | None
    earliest: int

    @classmethod
    def from_options(
        cls,
        side: str,
        weight: Tensor | None,
        time: Tensor | None,
        store: Store,
        node_type: NodeType,
    ) -> NodeDistribution:
        """Makes a distribution of the arguments ``<side>_weight`` and ``<side>_time``."""
        size = store.num_nodes(node_type)
        ends = running_sum(f"{side}_weight", weight, size, node_type)
        times = check_times(f"{side}_time", time, size, f"node of type {node_type!r}")
        device = store_device(store)
        return cls(
            size,
            None if ends is None else ends.to(device),
            None if times is None else times.to(device),
            0 if times is None or size == 0 else int(times.argmin()),
        )

    @property
    def native(self) -> tuple[int, Tensor | None, Tensor | None, int]:
        """The arguments for the compiled module."""
        return self.num_nodes, self.ends, self.times, self.earliest


def check_times(name: str, times: Tensor | None, count: int, owner: str) -> Tensor | None:
    """Returns times as [count] int64 on their device."""
    if times is None:
        return None
    times = check_integer_tensor(name, times)
    if tuple(times.shape) != (count,):
        raise ValueError(
            f"{name}: expected shape ({count},), a time for each {owner}, got {tuple(times.shape)}"
        )
    return times.long().contiguous()


def integer_weights(name: str, weight: Tensor) -> Tensor:
    """Converts weights to [N] int64 on the CPU: integers stay as they are; floats are scaled to a
    sum near 2**61, and floats above 0 become at least 1.
    """
    values = weight.detach().cpu()
    if not values.is_floating_point():
        values = values.long()
        # The sum of doubles does not overflow.
        if int(values.min()) < 0 or float(values.double().sum()) >= 2**62:
            raise ValueError(f"{name}: expected weights of 0 and more with a sum below 2**62")
        return values
    values = values.double()
    if not bool(values.isfinite().all()) or float(values.min()) < 0:
        raise ValueError(f"{name}: expected finite weights of 0 and more")
    # Divides by the largest weight first, as the sum may overflow.
    values = values / values.max().clamp(min=torch.finfo(torch.float64).tiny)
    scale = 2.0**_WEIGHT_BITS / max(float(values.sum()), 1.0)
    return torch.where(values > 0, (values * scale).long().clamp(min=1), 0)


def running_sum(name: str, weight: Tensor | None, size: int, node_type: NodeType) -> Tensor | None:
    """Returns the [nodes] int64 running sum of the weights on the CPU; None: uniform."""
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or weight.is_complex() or weight.dtype == torch.bool:
        got = weight.dtype if isinstance(weight, Tensor) else repr(weight)
        raise TypeError(f"{name}: expected a tensor of floats or integers, got {got}")
    if tuple(weight.shape) != (size,):
        raise ValueError(
            f"{name}: expected shape ({size},), a weight for each node of type {node_type!r}, "
            f"got {tuple(weight.shape)}"
        )
    if size == 0:
        return None
    ends = integer_weights(name, weight).cumsum(0)
    if int(ends[-1]) == 0:
        raise ValueError(f"{name}: expected at least one weight above 0")
    return ends
