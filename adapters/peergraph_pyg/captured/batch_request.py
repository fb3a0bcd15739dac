"""A batch that is begun: its seeds and all that the host knows of it before the sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from peergraph.store import NodeType


@dataclass
class BatchRequest:
    """What a batch is made of.

    Args:
        nodes: ids of the distinct seeds, by type, on the CPU.
        seed: of the random numbers of the sample.
        extras: a tree of tensors on the CPU that the batch contains, such as labels of links. Those
            of all full batches have the same shapes.
        is_full: whether it has as many seeds, or links, as a full batch.
        origin: what the loader needs to make the batch by itself.
    """

    nodes: dict[NodeType, Tensor]
    seed: int
    extras: Any
    is_full: bool
    origin: Any
