"""What the ranks of the demo do together: shares of the nodes, sums, one voice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from peergraph_demo.bars import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm


class Team:
    """This rank among all ranks of torch.distributed, which must be initialised.

    Args:
        device: where this rank trains.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.is_first = self.rank == 0

    def say(self, text: str) -> None:
        """Prints once, not once a rank."""
        if self.is_first:
            print(text, flush=True)

    def bar(self, total: int, what: str, unit: str) -> tqdm[Any]:
        """Returns a progress bar, shown by the first rank."""
        return progress_bar(total, what, unit, show=self.is_first)

    def distribute(self, model: nn.Module) -> nn.Module:
        """Returns the model with gradients averaged over the ranks. Collective."""
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def equal_share(self, nodes: Tensor) -> Tensor:
        """This rank's training nodes: as many on each rank, so that all take the same number of
        steps; the first nodes are repeated to make it so."""
        size = -(-len(nodes) // self.ranks)
        return nodes[torch.arange(self.rank, size * self.ranks, self.ranks) % len(nodes)]

    def share(self, nodes: Tensor) -> Tensor:
        """This rank's part of nodes to evaluate, each on one rank; may be empty."""
        return nodes[self.rank :: self.ranks]

    def mean(self, values: list[float]) -> list[float]:
        """Means over the ranks. Collective."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(v) for v in total / self.ranks]

    def accuracy(self, correct: Tensor, nodes: Tensor) -> float:
        """Returns the share of `nodes` that the ranks have classified correctly. Collective."""
        total = correct.clone()
        dist.all_reduce(total)
        return int(total) / len(nodes)


def batches(nodes: Tensor, size: int) -> Iterator[Tensor]:
    """`nodes` in pieces of `size`."""
    for start in range(0, len(nodes), size):
        yield nodes[start : start + size]
