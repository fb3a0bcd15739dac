"""PyG's negative sampling with weights in a store, with weights on a GPU, or for over 2^24
nodes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from peergraph.memory import ContentCheck

_MAX_CATEGORIES = 1 << 24  # of torch.multinomial


class RunningSums:
    """The running sums of many weights, made again where the weights hold other values."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[ContentCheck, Tensor]] = {}

    def of(self, name: str, weights: Tensor) -> Tensor:
        """Returns the [N] float64 running sum of [N] weights on the CPU.

        Args:
            name: which weights these are.
        """
        last = self._last.get(name)
        if last is None or not last[0].is_unchanged([weights]):
            last = self._last[name] = ContentCheck([weights]), weights.double().cumsum(0)
        return last[1]


class CpuNegativeSampling(NegativeSampling):  # type: ignore[misc]
    """Draws a batch as PyG does with the same settings and generator, from weights copied to the
    CPU: those of this moment, as PyG reads them in every batch.

    ``torch.multinomial`` takes at most 2^24 weights. More are sampled by inverse transform: random
    numbers of the same generator are searched in the cumulative sum of the weights.

    Args:
        sampling: the user's settings.
        num_nodes: numbers of nodes of the source type and of the destination type.
        sums: of earlier batches with weights of the same relation.

    Raises:
        ValueError: the number of weights is not the number of nodes.
    """

    def __init__(
        self, sampling: NegativeSampling, num_nodes: tuple[int, int], sums: RunningSums
    ) -> None:
        src, dst = (
            _checked(name, getattr(sampling, name), count)
            for name, count in zip(("src_weight", "dst_weight"), num_nodes, strict=True)
        )
        super().__init__(sampling.mode, sampling.amount, src, dst)
        self._sums = sums

    def sample(self, num_samples: int, endpoint: Any, num_nodes: int | None = None) -> Tensor:
        """Draws ``[num_samples]`` node ids."""
        weights = self.src_weight if endpoint == "src" else self.dst_weight
        if weights is None or weights.numel() <= _MAX_CATEGORIES:
            drawn: Tensor = super().sample(num_samples, endpoint, num_nodes)
            return drawn
        sums = self._sums.of(endpoint, weights)
        numbers = torch.rand(num_samples, dtype=torch.float64, device="cpu") * sums[-1]
        # `right=True`, so that nodes of weight zero are never drawn.
        return torch.searchsorted(sums, numbers, right=True).clamp_(max=sums.numel() - 1)


def _checked(name: str, weights: Any, num_nodes: int) -> Tensor | None:
    if weights is None:
        return None
    plain: Tensor = torch.as_tensor(weights).detach().cpu()
    if plain.dim() != 1 or plain.numel() != num_nodes:
        raise ValueError(
            f"{name} of neg_sampling must be one weight for each of {num_nodes} nodes, "
            f"got {list(plain.shape)}"
        )
    return plain
