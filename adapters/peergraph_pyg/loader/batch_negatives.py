"""Negatives of link loaders that depend on the batch's positives: on their ends, or on their
windows of time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from peergraph.sampling import NodeWindows, hard_negatives, in_batch_negatives, next_seed


class BatchNegatives(NegativeSampling, ABC):  # type: ignore[misc]
    """Negative destinations for the positives of a batch of ``LinkNeighborLoader``.

    Binary negatives have the sources of the positives: negative i belongs to positive ``i % P``.

    Args:
        amount: negatives per positive; a whole number for triplets.
        mode: ``"triplet"`` or ``"binary"``, as in PyG.
    """

    def __init__(self, amount: float = 1, mode: str = "triplet") -> None:
        super().__init__(mode, amount)

    @abstractmethod
    def draw(
        self,
        source: Tensor,
        destination: Tensor,
        amount: int,
        num_nodes: int,
        windows: NodeWindows | None,
    ) -> Tensor:
        """Returns negative destinations ``[P, amount]`` for the ends ``[P]`` of the positives, of
        nodes in their windows.
        """

    def of_batch(self, inputs: Any, destinations: End, *, disjoint: bool) -> NegativeSampling:
        """Returns the negatives of a batch, as PyG's code asks for them.

        Args:
            inputs: the ends of the positives, an ``EdgeSamplerInput``.
            destinations: nodes that may be drawn.
            disjoint: whether each positive has its own subgraph, which decides on PyG's order.
        """
        drawn = self.draw(inputs.row, inputs.col, math.ceil(self.amount), *destinations)
        # In PyG's order the negatives of a positive are side by side in triplets of one subgraph.
        one_after_other = self.is_triplet() and not disjoint
        destination = drawn.flatten() if one_after_other else drawn.t().flatten()
        source = inputs.row.repeat(math.ceil(self.amount))
        return _Drawn(self, {"src": source, "dst": destination})

    def sample(self, num_samples: int, endpoint: Any, num_nodes: int | None = None) -> Tensor:
        """Raises NotImplementedError: the positives are unknown."""
        raise NotImplementedError(
            f"{type(self).__name__} needs data that peergraph_pyg.share() returned, with PyG's "
            "LinkNeighborLoader"
        )


class _Drawn(NegativeSampling):  # type: ignore[misc]
    """Negatives that have been drawn, for one batch."""

    def __init__(self, settings: NegativeSampling, ends: dict[str, Tensor]) -> None:
        super().__init__(settings.mode, settings.amount)
        self._ends = ends

    def sample(self, num_samples: int, endpoint: Any, num_nodes: int | None = None) -> Tensor:
        return self._ends[endpoint][:num_samples].cpu()


class End(NamedTuple):
    """The nodes of one end of a batch's links: how many there are, and those in the positives'
    windows; None where they have no times.
    """

    num_nodes: int
    windows: NodeWindows | None


def drawn_in_windows(
    negatives: NegativeSampling, count: int, sources: End, destinations: End
) -> NegativeSampling:
    """Returns random negatives of a batch, among the nodes in the window of their positive.

    Args:
        negatives: the settings; they draw the nodes.
        count: positives of the batch.
        sources, destinations: nodes that may be drawn.
    """
    positives = torch.arange(count, device="cpu").repeat(math.ceil(negatives.amount))

    def draw(name: str, end: End) -> Tensor:
        def draw_nodes(number: int) -> Tensor:
            drawn: Tensor = negatives.sample(number, name, end.num_nodes)
            return drawn

        if end.windows is None:
            return draw_nodes(len(positives))
        return end.windows.draw(positives, draw_nodes, getattr(negatives, f"{name}_weight"))

    ends = {"src": draw("src", sources)} if negatives.is_binary() else {}
    return _Drawn(negatives, {**ends, "dst": draw("dst", destinations)})


class InBatchNegatives(BatchNegatives):
    """Takes destinations of other positives of the batch, which are no positives of the source in
    the batch (:func:`peergraph.sampling.in_batch_negatives`). Where nodes have times
    (``time_attr``), they are in the positive's window.

    Example::

        loader = LinkNeighborLoader(data, [10, 5], neg_sampling=InBatchNegatives(8), ...)
    """

    def draw(
        self,
        source: Tensor,
        destination: Tensor,
        amount: int,
        num_nodes: int,
        windows: NodeWindows | None,
    ) -> Tensor:
        """Returns negative destinations ``[P, amount]``."""
        seed = next_seed()
        windows = None if windows is None else windows.to(source.device)
        return in_batch_negatives(
            source, destination, amount, seed, num_nodes=num_nodes, windows=windows
        ).destination


class HardNegatives(BatchNegatives):
    """Takes negatives from a list for each source (:func:`peergraph.sampling.hard_negatives`), and
    where nodes have times (``time_attr``), only those in the positive's window.

    Make the lists with :func:`peergraph.top_k`, and a new loader when the embeddings have changed.

    Args:
        candidates: int64 ``[nodes of the sources' type, n]`` ids of destinations, on the CPU or a
            GPU; -1 at the end of a row: no candidate.
        amount, mode: as for :class:`BatchNegatives`.

    Example::

        hard = peergraph.top_k(data.x, queries, 50, exclude=(indptr, neighbors)).ids
        loader = LinkNeighborLoader(data, [10, 5], neg_sampling=HardNegatives(hard, 4), ...)
    """

    def __init__(self, candidates: Tensor, amount: float = 1, mode: str = "triplet") -> None:
        super().__init__(amount, mode)
        self.candidates = torch.as_tensor(candidates).detach()
        if self.candidates.dim() != 2 or self.candidates.dtype != torch.int64:
            raise ValueError(
                "candidates must be int64 of shape [sources, n], got "
                f"{self.candidates.dtype} {list(self.candidates.shape)}"
            )

    def draw(
        self,
        source: Tensor,
        destination: Tensor,
        amount: int,
        num_nodes: int,
        windows: NodeWindows | None,
    ) -> Tensor:
        """Returns negative destinations ``[P, amount]``."""
        device, seed = self.candidates.device, next_seed()
        windows = None if windows is None else windows.to(device)
        return hard_negatives(
            self.candidates, source.to(device), amount, seed, num_nodes=num_nodes, windows=windows
        ).destination
