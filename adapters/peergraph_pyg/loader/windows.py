"""Windows of time: the earliest times that seeds admit, from a loader's argument to its sampler."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from peergraph.store import NodeType

Seeds = Tensor | dict[NodeType, Tensor]

# The starts of a batch, and whether each link has one source and several destinations.
_batch: ContextVar[tuple[Tensor, bool] | None] = ContextVar("peergraph_pyg_starts", default=None)


class _WithStarts:
    """Seeds or links with the time at which the window of each begins."""

    start: Tensor

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, Tensor):
            index = torch.tensor(index, dtype=torch.long, device="cpu")
        part = copy.copy(self)
        part.__dict__.update(super().__getitem__(index).__dict__)  # type: ignore[misc]
        part.start = self.start[index]
        return part


class _NodesWithWindowStarts(_WithStarts, NodeSamplerInput):  # type: ignore[misc]
    pass


class _LinksWithWindowStarts(_WithStarts, EdgeSamplerInput):  # type: ignore[misc]
    pass


def with_starts(inputs: Any, starts: Any, name: str) -> Any:
    """Returns a loader's inputs with the time at which the window of each begins.

    Args:
        inputs: PyG's ``NodeSamplerInput`` or ``EdgeSamplerInput``.
        starts: [inputs] int32 or int64.
        name: of the loader's argument.

    Raises:
        TypeError, ValueError: `starts` is not as above.
    """
    if not isinstance(starts, Tensor) or starts.dtype not in (torch.int32, torch.int64):
        got = starts.dtype if isinstance(starts, Tensor) else type(starts)
        raise TypeError(f"{name}: expected an int32 or int64 tensor, got {got}")
    starts = starts.cpu()
    of_nodes = isinstance(inputs, NodeSamplerInput)
    count = len(inputs.node if of_nodes else inputs.row)
    if tuple(starts.shape) != (count,):
        shape = tuple(starts.shape)
        raise ValueError(f"{name}: expected {count} times, one for each seed, got shape {shape}")
    result = copy.copy(inputs)
    result.__class__ = _NodesWithWindowStarts if of_nodes else _LinksWithWindowStarts
    result.start = starts
    return result


@contextmanager
def starts_of(inputs: Any, *, one_source: bool = False) -> Iterator[None]:
    """In this context, :func:`seed_starts` returns the starts of a batch's seeds.

    Args:
        inputs: of the batch.
        one_source: whether each link has one source and several destinations, as with triplets.
    """
    start = getattr(inputs, "start", None)
    token = _batch.set(None if start is None else (start, one_source))
    try:
        yield
    finally:
        _batch.reset(token)


def seed_starts(seeds: Seeds) -> Seeds | None:
    """Returns the start of each seed that PyG makes of a batch's inputs; None: there are none.

    Seeds are nodes, or ends of links: all sources, then all destinations. Those of the positives
    come first, and the negatives repeat the times of the positives.

    Args:
        seeds: as PyG passes them to the sampler.
    """
    batch = _batch.get()
    if batch is None:
        return None
    start, one_source = batch
    if isinstance(seeds, dict) and len(seeds) > 1:
        return {t: _repeat(start, len(ids)) for t, ids in seeds.items()}
    [(node_type, ids)] = seeds.items() if isinstance(seeds, dict) else [("", seeds)]
    sources = len(start) if one_source else len(ids) // 2
    if len(ids) == len(start):
        starts = start
    else:
        starts = torch.cat([_repeat(start, sources), _repeat(start, len(ids) - sources)])
    return {node_type: starts} if isinstance(seeds, dict) else starts


def _repeat(start: Tensor, count: int) -> Tensor:
    times = -(-count // max(1, len(start)))
    return start.repeat(times)[:count]
