"""The order of a loader's seeds as tensors, which PyG would make of lists of Python's numbers.

A list of 1024 numbers takes a quarter of a millisecond of Python's lock, which the training loop
waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch_geometric.loader import LinkLoader, NodeLoader

_COLLATES = (NodeLoader.collate_fn, LinkLoader.collate_fn)


class _Samples:
    """What fetches a batch in torch's iterator: the positions of seeds need not be looked up."""

    def __init__(self, collate: Any) -> None:
        self.fetch = collate


def order_by_tensors(loader: Any, batches: Any) -> None:
    """Lets an iterator of a loader have the positions of its seeds as tensors: the same ones.

    Does nothing where the order is the user's, or comes from a generator of the user's, or where
    another process makes the batches.

    Args:
        loader: PyG's NodeLoader or LinkLoader.
        batches: what it has returned for an iteration that has not begun.
    """
    iterator = getattr(batches, "iterator", batches)  # PyG's gathers rows after torch's
    if type(iterator) is not _SingleProcessDataLoaderIter or type(loader.dataset) is not range:
        return
    sampler = loader.batch_sampler
    is_pygs = getattr(loader.collate_fn, "__func__", None) in _COLLATES
    if not is_pygs or type(sampler) is not BatchSampler or not _is_known(sampler.sampler):
        return
    iterator._sampler_iter = _positions(sampler)
    iterator._dataset_fetcher = _Samples(loader.collate_fn)


def _is_known(sampler: Any) -> bool:
    if type(sampler) is not RandomSampler:
        return type(sampler) is SequentialSampler
    is_once = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return is_once and sampler.generator is None


def _positions(batches: BatchSampler) -> Iterator[Tensor]:
    """Yields the positions of the seeds of each batch, as torch's samplers do."""
    sampler: Any = batches.sampler
    count = len(sampler.data_source)
    if type(sampler) is RandomSampler:
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(count, generator=generator, device="cpu")
    else:
        order = torch.arange(count, device="cpu")
    size = batches.batch_size
    for begin in range(0, count - size + 1 if batches.drop_last else count, size):
        yield order[begin : begin + size].clone()  # batches keep it, and nothing of the others
