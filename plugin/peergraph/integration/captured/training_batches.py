"""The batches of a framework's loader, as captured training takes them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from peergraph.sampling import NeighborSampler, StaticShapeSample
from peergraph.store import EdgeType, NodeType, Store

# The number of batches that are drawn to choose the capacities of all later ones.
_TRIES = 16


@dataclass
class BatchRequest:
    """A batch before it is sampled: its seeds, and what else the host knows of it.

    Args:
        nodes: ids of the seeds, by type, on the CPU.
        seed: of the random numbers of the sample.
        extras: a tree of tensors on the CPU that the batch contains, such as labels of links. Those
            of all full batches have the same shapes.
        is_full: whether it has as many seeds, or links, as a full batch.
        origin: what the loader needs to make the batch by itself.
        times: arguments of the sampler with a time for each seed, by name, then by type of the
            seeds, on the CPU: `seed_time` and `seed_start`, or none. All batches have the same.
        excluded: edges that the sample shall not have, by type, on the CPU: as the argument
            `exclude` of a ``StaticShapeSampler``. Those of all full batches have the same shapes.
    """

    nodes: dict[NodeType, Tensor]
    seed: int
    extras: Any
    is_full: bool
    origin: Any
    times: dict[str, dict[NodeType, Tensor]] = field(default_factory=dict)
    excluded: dict[EdgeType, Tensor] = field(default_factory=dict)


class SampleCounts(NamedTuple):
    """The numbers of seeds, of new nodes of each hop, and of edges of each hop, by type. Excluded
    edges count, because they are drawn.

    As capacities, those of the shape: the rows of the seeds and of padding in the place of seeds.
    """

    nodes: dict[NodeType, list[int]]
    edges: dict[EdgeType, list[int]]


class TrainingBatches(ABC):
    """The batches of a loader.

    Args:
        loader: that was checked.
        store: of the loader's graph.
    """

    def __init__(self, loader: Any, store: Store) -> None:
        self._loader, self.store = loader, store

    def __len__(self) -> int:
        """Returns the number of batches of an epoch."""
        return len(self._loader)

    @property
    @abstractmethod
    def core(self) -> NeighborSampler:
        """The sampler with the loader's present settings; another object once they have changed."""

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the sizes of full batches depend on."""
        return (self.core,)

    @abstractmethod
    def indices(self) -> Iterator[Any]:
        """Yields what :meth:`begin` takes of each batch of an epoch, in the loader's order."""

    @abstractmethod
    def begin(self, index: Any) -> BatchRequest:
        """Begins a batch. Draws the numbers from torch's default generator that the loader draws
        for it.
        """

    @abstractmethod
    def try_indices(self) -> Iterator[Any]:
        """Yields what :meth:`begin` takes of some full batches, by :func:`try_positions`."""

    def try_batches(self) -> list[BatchRequest]:
        """Returns some full batches. Leaves the default generators of torch, of NumPy and of Python
        as they are.
        """
        of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                return [self.begin(index) for index in self.try_indices()]
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)

    @abstractmethod
    def draw(self, request: BatchRequest) -> tuple[Any, SampleCounts]:
        """Returns a batch as the loader makes it, and the counts of its sample.

        The tensors of a request are on the store's device in it, as in other batches.
        """

    @abstractmethod
    def make(self, sample: StaticShapeSample, extras: Any) -> Any:
        """Returns the batch of a padded sample, as the loader makes it of its own samples.

        Args:
            sample: a sample with valid padding, whose memory the batch may share.
            extras: of the batch's request, on the store's device.
        """

    @abstractmethod
    def change_padding(
        self, batch: Any, sample: StaticShapeSample, padding: dict[NodeType, Tensor]
    ) -> None:
        """Writes :func:`other_values` to the padding rows of all attributes of nodes and edges.

        Args:
            batch: that :meth:`make` returned; other batches do not see the change.
            sample: of the batch.
            padding: by node type, [rows] bool, which rows are padding.
        """

    def on_device(self, extras: Any) -> Any:
        """Returns the extras of a request, with all tensors on the store's device."""
        device = self.store.device
        return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, extras)

    def mixes_rows(self, module: torch.nn.Module) -> bool:
        """Returns whether a module of the framework computes over all rows of a batch."""
        return False


def try_positions(count: int, size: int, *, in_order: bool) -> Iterator[Tensor]:
    """Yields positions of the seeds of some full batches in a loader's input.

    Draws from torch's default generator of the CPU. Yields nothing if the input is smaller than a
    batch.

    Args:
        count: seeds of the input.
        size: seeds of a batch.
        in_order: whether batches are consecutive seeds; else they are random ones.
    """
    last = count - size
    for i in range(_TRIES if last >= 0 else 0):
        if in_order:
            begin = last * i // (_TRIES - 1)
            yield torch.arange(begin, begin + size, device="cpu")
        elif last > 8 * size:  # nearly distinct, without a permutation of all
            yield torch.randint(count, (size,), device="cpu")
        else:
            yield torch.randperm(count, device="cpu")[:size]


def other_values(rows: Tensor, is_padding: Tensor) -> Tensor:
    """Returns rows with other numbers where they are padding; only floating-point ones change."""
    if not rows.is_floating_point():
        return rows
    others = 10 - 3 * rows.nan_to_num()  # NaN is a missing value in tables
    return torch.where(is_padding.view(-1, *[1] * (rows.dim() - 1)), others, rows)
