"""Loaders that can be resumed: seed, epoch and batch number determine every batch."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from peergraph.integration.thread_rng import ThreadRng

_ORDER = -1


class StatefulLoader:
    """A loader with ``state_dict`` and ``load_state_dict``, as torchdata's StatefulDataLoader.

    Each batch depends only on the seed, the epoch, its number in the epoch and this rank's number
    in torch.distributed. It does not depend on random numbers that the training draws, so a run
    that is resumed from a checkpoint gets the same batches as without the interruption.

    It has all attributes of the loader. The state determines the random numbers that functions of
    torch draw on the CPU and on GPUs. Random numbers of numpy and Python are determined only for
    the order of an epoch.
    """

    def __init__(
        self,
        loader: Any,
        seed: int = 0,
        iterate: Callable[[KeyedEpoch], Iterator[Any]] = iter,
    ) -> None:
        """
        Args:
            loader: a torch DataLoader, or a loader of PyG or DGL.
            seed: the seed, the same on all ranks; ranks get different batches.
            iterate: makes the iterator of an epoch, which may read ahead.

        Raises:
            TypeError: `seed` is not an int.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be an int, got {seed!r}")
        self.loader = loader
        self._seed = seed
        self._iterate = iterate
        self._epoch = self._batch = 0
        self._is_set = True
        # DGL shuffles the order of the previous epoch.
        self._first_order = _dgl_order(loader)

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Sets the epoch and the first batch of the next iteration.

        Args:
            epoch: the number of the epoch, from 0.
            start_batch: the number of batches to skip. If the epoch has no more batches than that,
                the iteration is empty.

        Raises:
            ValueError: an argument is not an int of at least 0.
        """
        for name, value in (("epoch", epoch), ("start_batch", start_batch)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an int of at least 0, got {value!r}")
        self._epoch, self._batch, self._is_set = epoch, start_batch, True

    def state_dict(self) -> dict[str, int]:
        """Returns the seed, the epoch, and the number of its batches that the loop has got."""
        return {"seed": self._seed, "epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Resumes at the batch at which the state was taken, in the next iteration.

        Raises:
            ValueError: the state belongs to a loader with another seed, or is not a state.
        """
        if state_dict.keys() != self.state_dict().keys():
            raise ValueError(f"expected the state of a StatefulLoader, got {state_dict!r}")
        if state_dict["seed"] != self._seed:
            raise ValueError(
                f"the state is of a loader with seed {state_dict['seed']}, this one has "
                f"{self._seed}"
            )
        self.set_epoch(state_dict["epoch"], state_dict["batch"])

    def __iter__(self) -> Iterator[Any]:
        if not self._is_set:  # the last iteration was left early
            self._epoch, self._batch = self._epoch + 1, 0
        self._is_set = False
        epoch = self._epoch
        _restore_dgl_order(self.loader, self._first_order)
        key = (self._seed, epoch, dist.get_rank() if dist.is_initialized() else 0)
        batches = self._iterate(KeyedEpoch(self.loader, key, self._batch))
        return self._count(batches, epoch)

    def _count(self, batches: Iterator[Any], epoch: int) -> Iterator[Any]:
        for batch in batches:
            self._batch += 1
            yield batch
        self._epoch, self._batch, self._is_set = epoch + 1, 0, True

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)


class KeyedEpoch:
    """One epoch of a loader, with random numbers by the number of the batch; iterated once."""

    def __init__(self, loader: Any, key: tuple[int, ...], start_batch: int) -> None:
        self.loader = loader
        self._key = key
        self._start_batch = start_batch

    def __iter__(self) -> Iterator[Any]:
        return KeyedIterator(self.loader, self._key, self._start_batch)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class KeyedIterator:
    """Iterates a loader, starting at a batch."""

    def __init__(self, loader: Any, key: tuple[int, ...], start_batch: int) -> None:
        self._key = key
        self._rng = ThreadRng()
        self._batch = 0
        with self._random(_ORDER), _seeded_globals(_number((*key, _ORDER))):
            self._inner = iter(loader)
        skip = _index_iterator(self._inner) if start_batch else None
        while self._batch < start_batch:
            try:
                with self._random(self._batch):
                    next(self._inner if skip is None else skip)
            except StopIteration:
                self._inner = iter(())
                return
            self._batch += 1

    def __iter__(self) -> KeyedIterator:
        return self

    def __next__(self) -> Any:
        with self._random(self._batch):
            batch = next(self._inner)
        self._batch += 1
        return batch

    @property
    def random_state(self) -> Tensor:
        """The state of the CPU's generator after the last batch was made."""
        return self._rng.state

    @contextmanager
    def _random(self, batch: int) -> Iterator[None]:
        self._rng.reseed(_number((*self._key, batch)))
        with self._rng:
            yield


def _number(key: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


@contextmanager
def _seeded_globals(seed: int) -> Iterator[None]:
    """Seeds numpy's and Python's generators, and restores them."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before[0])  # noqa: NPY002
        random.setstate(before[1])


def _index_iterator(iterator: Any) -> Iterator[Any] | None:
    """Returns the iterator over the seeds of batches, if this thread makes batches on demand:
    advancing it skips a batch. Returns None if batches can be skipped only by making them.
    """
    if getattr(iterator, "use_thread", False):
        return None
    # The iterators of PyG and DGL wrap torch's.
    inner = getattr(iterator, "iterator", getattr(iterator, "dataloader_it", iterator))
    if getattr(inner, "_num_workers", 1) != 0 or not hasattr(inner, "_dataset_fetcher"):
        return None
    dataset = getattr(inner._dataset_fetcher, "dataset_iter", None)
    indices: Iterator[Any] = inner._sampler_iter if dataset is None else dataset
    return indices


def _dgl_order(loader: Any) -> Any:
    order = getattr(getattr(loader, "dataset", None), "_indices", None)
    return None if order is None or not hasattr(order, "copy_") else order.clone()


def _restore_dgl_order(loader: Any, order: Any) -> None:
    if order is not None:
        loader.dataset._indices.copy_(order)
