"""Loaders over a store that is split over machines: their batches get rows of other machines."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader

from peergraph.integration import ExchangeIterator, ThreadRng
from peergraph.memory import DistributedTable, Table
from peergraph.store import TableTensor

from ..data.store_of import find_store
from ..loader.sampler import NeighborSampler
from .prefetch_iterator import PrefetchIterator, PrefetchOptions, Result
from .thread_state import Modes, record_stream


@dataclass
class Sampled:
    """A sample, and the random state after it if the batch's number in the epoch determines it."""

    sample: Any
    random_state: Tensor | None


@contextmanager
def _random_numbers(state: Tensor | None) -> Iterator[ThreadRng | None]:
    """Returns a context that continues the random numbers of a sample."""
    if state is None:
        yield None
        return
    rng = ThreadRng()
    rng.state = state
    with rng:
        yield rng


class RowsOfSamples:
    """The last step of a loader: gathers the features of its samples.

    Args:
        loader: a loader of PyG; it is not changed.
    """

    def __init__(self, loader: NodeLoader | LinkLoader) -> None:
        # Samples are transformed before their ids are read.
        self._transform = loader.transform_sampler_output
        self._loader = copy.copy(loader)
        self._loader.transform_sampler_output = None
        sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
        self._permutation = getattr(sampler, "edge_permutation", None)
        self._tensors = list(_split_tensors(loader.data))

    @property
    def description(self) -> str:
        """The loader and the tables that it reads, as text; the same on all ranks."""
        names = ", ".join(sorted(_name(tensor) for tensor in self._tensors))
        return f"{type(self._loader).__name__} of {names or 'no split tables'}"

    def sampled(self, sample: Any, random_state: Tensor | None) -> Sampled:
        """Applies the loader's ``transform_sampler_output`` to a sample."""
        if self._transform is None:
            return Sampled(sample, random_state)
        with _random_numbers(random_state) as rng:
            transformed = self._transform(sample)
            return Sampled(transformed, None if rng is None else rng.state)

    def requests(self, sampled: Sampled) -> list[tuple[Table, Tensor]]:
        """Returns the tables that the batch reads, and the ids of the rows."""
        requests = []
        for tensor in self._tensors:
            ids = self._ids(tensor, sampled.sample)
            if ids is not None:
                requests.append((tensor.table, ids))
        return requests

    def batch(self, sampled: Sampled) -> Any:
        """Returns the batch of a sample."""
        with _random_numbers(sampled.random_state):
            return self._loader.filter_fn(sampled.sample)

    def _ids(self, tensor: TableTensor, sample: Any) -> Tensor | None:
        is_of_edges = isinstance(tensor.owner, tuple)
        ids: Any = sample.edge if is_of_edges else sample.node
        permutation = self._permutation if is_of_edges else None
        if isinstance(ids, dict):
            ids = ids.get(tensor.owner)
            permutation = (permutation or {}).get(tensor.owner)
        if ids is not None and permutation is not None:
            if ids.is_cuda:
                # The sample may be freed before this stream has read its ids.
                ids.record_stream(torch.cuda.current_stream(ids.device))
            ids = permutation[ids]
        checked: Tensor | None = ids
        return checked


def _name(tensor: TableTensor) -> str:
    owner = tensor.owner if isinstance(tensor.owner, str) else "-".join(tensor.owner)
    return f"{owner}.{tensor.table_name}"


def _split_tensors(data: Any) -> Iterator[TableTensor]:
    """Yields the tensors of a loader's data that have rows on other machines."""
    if isinstance(data, (Data, HeteroData)):
        values: Iterable[Any] = (v for storage in data.stores for v in storage.values())
    else:
        values = data[0].tensors()
    for value in values:
        if isinstance(value, TableTensor) and isinstance(value.table, DistributedTable):
            yield value


def exchange_rows(
    loader: Any,
    samples: Iterator[Any],
    depth: int,
    device: torch.device,
    options: PrefetchOptions,
) -> ExchangeIterator:
    """Returns the batches of a loader, with rows of other machines.

    Args:
        loader: a loader of PyG, or a wrapper of it.
        samples: the samples of the loader's sampler.
        depth: the number of samples that a thread makes ahead. With 0, and with samplers that may
            not be safe in a thread, each sample is made when the loop asks for its batch.
        device: the device of the thread's stream.
        options: the options of the thread; its limit of blocks applies to gathers of rows, too.
    """
    while not isinstance(loader, (NodeLoader, LinkLoader)):
        loader = loader.loader
    rows = RowsOfSamples(loader)
    store = find_store(loader.data)
    assert store is not None
    sampler = getattr(loader, "node_sampler", None) or loader.link_sampler
    sampled = _Samples(samples, rows)
    if depth == 0 or not isinstance(sampler, NeighborSampler):
        return ExchangeIterator(
            store,
            sampled,
            rows.requests,
            lambda sample, fetched: rows.batch(sample),
            rows.description,
            ahead=False,
            record_stream=record_stream,
        )
    # `next` takes a sample two rounds ahead, and the thread makes the one after it meanwhile.
    assert store.exchange is not None
    ahead = depth + 2 * store.exchange.batches_per_round
    results = _Results(PrefetchIterator(sampled, ahead, device, options, store, finds_memory=False))
    return ExchangeIterator(
        store,
        results,
        lambda result: rows.requests(results.sample_of(result)),
        lambda result, fetched: rows.batch(result.batch),
        rows.description,
        max_blocks=options.blocks_on(device),
        # A transform may draw random numbers, whose order among the loop's must not change.
        modes=Modes.current().entered if loader.transform is None else None,
        deliver=results.deliver,
        record_stream=record_stream,
    )


class _Samples:
    """Transforms samples in the thread that makes them."""

    def __init__(self, samples: Iterator[Any], rows: RowsOfSamples) -> None:
        self._samples = samples
        self._rows = rows

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Sampled:
        sample = next(self._samples)
        return self._rows.sampled(sample, getattr(self._samples, "random_state", None))

    def __len__(self) -> int:
        return len(self._samples)  # type: ignore[arg-type]


class _Results:
    """The samples that a thread has made ahead."""

    def __init__(self, prefetched: PrefetchIterator) -> None:
        self._prefetched = prefetched
        self._last: Result | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Result:
        if self._last is not None:
            raise StopIteration
        result = self._prefetched.next_result()
        if result.last:
            # Without its error, whose traceback would keep the iterator that was left alive.
            self._last = replace(result, error=None)
            if result.error is None or isinstance(result.error, StopIteration):
                raise StopIteration
            try:
                raise result.error
            finally:
                del result
        return result

    def __len__(self) -> int:
        return len(self._prefetched)

    def sample_of(self, result: Result) -> Sampled:
        """Returns the sample of a result, or raises its error. The current stream waits for it."""
        sampled: Sampled = self._prefetched.ready_batch(result)
        return sampled

    def deliver(self, result: Result | None) -> None:
        """Called when the loop takes a result; None: the loop has taken all results."""
        accepted = result or self._last
        if accepted is not None:
            self._prefetched.accept(accepted)

    def close(self) -> None:
        """Ends the thread."""
        self._prefetched.close()
