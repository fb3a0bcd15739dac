"""The batches of a PyG loader: begun by its own code, made of samples with padding or without."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from peergraph import sampling
from peergraph.sampling import Sample, StaticShapeSample
from peergraph.store import EDGE, NODE, Store

from ..loader.batch_csc import cache_csc
from ..loader.unfinished import begin_output, collected_requests
from ..prefetching.prefetcher import plain_iterator
from .batch_bounds import Counts
from .batch_request import BatchRequest

_TRIES = 16


class LoaderBatches:
    """The batches of a loader.

    Args:
        loader: that :func:`check_loader` has found fit.
        store: of its data.
    """

    def __init__(self, loader: Any, store: Store) -> None:
        self._loader, self.store = loader, store

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def _sampler(self) -> Any:
        return getattr(self._loader, "node_sampler", None) or self._loader.link_sampler

    @property
    def core(self) -> sampling.NeighborSampler:
        """The core's sampler with the loader's present settings."""
        core: sampling.NeighborSampler = self._sampler.core
        return core

    @property
    def settings(self) -> tuple[Any, ...]:
        """What the sizes of full batches depend on."""
        negatives = getattr(self._loader, "neg_sampling", None)
        return self.core, *((negatives.mode, negatives.amount) if negatives else ())

    def indices(self) -> Iterator[Any]:
        """Yields the positions of the seeds of each batch, drawn as the loader draws them."""
        loader = copy.copy(self._loader)
        loader.num_workers, loader.pin_memory = 0, False
        batches: Any = plain_iterator(loader)
        # PyG's iterator gathers rows after torch's.
        positions: Iterator[Any] = getattr(batches, "iterator", batches)._sampler_iter
        return positions

    def begin(self, index: Any) -> BatchRequest:
        """Begins the batch of seeds or links at these positions of the loader's input.

        Draws the numbers from torch's default generator that the loader draws for a batch. The
        loader's own code draws negatives and numbers the nodes of links: as its random numbers come
        from a generator of the CPU, batches are those of the loader only if the host does it.
        """
        with collected_requests() as requests:
            output = begin_output(self._loader, index)
        [request] = requests
        nodes = {NODE: request.nodes} if isinstance(request.nodes, Tensor) else request.nodes
        is_full = len(index) == self._loader.batch_size
        return BatchRequest(nodes, request.seed, output.metadata, is_full, request)

    def try_batches(self) -> list[BatchRequest]:
        """Returns some full batches; there are none if the input is smaller than a batch.

        Leaves torch's default generators as they are.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return [self.begin(index) for index in self._try_indices()]

    def _try_indices(self) -> Iterator[Tensor]:
        count, size = len(self._loader.dataset), self._loader.batch_size
        last = count - size
        if last < 0:
            return
        for i in range(_TRIES):
            if isinstance(self._loader.sampler, SequentialSampler):
                begin = last * i // (_TRIES - 1)
                yield torch.arange(begin, begin + size, device="cpu")
            elif last > 8 * size:  # nearly distinct, without a permutation of all
                yield torch.randint(count, (size,), device="cpu")
            else:
                yield torch.randperm(count, device="cpu")[:size]

    def draw(self, request: BatchRequest) -> tuple[Any, Counts]:
        """Returns the batch as the loader makes it, and the counts of its sample.

        The tensors of a request are on the store's device in it, as in other batches.
        """
        request.origin.finish(None)
        out = request.origin.output
        out.metadata = tuple(
            value.to(self.store.device) if isinstance(value, Tensor) else value
            for value in request.extras
        )
        return self._loader.filter_fn(out), _counts_of(out)

    def make(self, sample: StaticShapeSample, extras: Any, pad_with: int | None = None) -> Any:
        """Returns the batch of a sample, as the loader makes it of its own samples.

        Padding rows have the attributes of one of the seeds (of another type: of node 0), so that
        no function finds values in them that nodes do not have.

        Args:
            sample: a sample with valid padding that has fit.
            extras: of the batch's request, on the store's device.
            pad_with: which of the seeds, for a batch with memory of its own. None: the first one;
                the batch then shares the sample's memory, without a pass over nodes or edges.
        """
        if pad_with is not None:
            sample = _padded_copy(sample, pad_with)
        padded = _as_unpadded(sample)
        out = self._sampler.output_of(padded)
        out.metadata = extras
        cache_csc(padded)
        return self._loader.filter_fn(out)


def _counts_of(out: SamplerOutput | HeteroSamplerOutput) -> Counts:
    nodes, edges = out.num_sampled_nodes, out.num_sampled_edges
    if isinstance(out, SamplerOutput):
        return Counts({NODE: nodes}, {EDGE: edges})
    return Counts(dict(nodes), dict(edges))


def _padded_copy(sample: StaticShapeSample, pad_with: int) -> StaticShapeSample:
    """Returns a copy in which padding of the seeds' types is one of the seeds, if there are as
    many.
    """
    nodes = {t: ids.clone() for t, ids in sample.nodes.items()}
    for node_type, ids in nodes.items():
        if sample.shape.padding_row(node_type) > 0:
            # One row of these is padding, and so has the first seed's id.
            nodes[node_type] = torch.where(sample.is_padding(node_type), ids[pad_with], ids)
    edge_ids = sample.edge_ids
    return replace(
        sample,
        nodes=nodes,
        edge_index={t: edges.clone() for t, edges in sample.edge_index.items()},
        edge_ids=None if edge_ids is None else {t: e.clone() for t, e in edge_ids.items()},
    )


def _as_unpadded(sample: StaticShapeSample) -> Sample:
    """Returns a sample in which padding is nodes and edges like others."""
    return Sample(
        nodes=sample.nodes,
        row=sample.row,
        col=sample.col,
        edge_ids=sample.edge_ids,
        batch=None,
        duplicate_counts=None,
        num_sampled_nodes={t: list(rows) for t, rows in sample.shape.rows_per_hop.items()},
        num_sampled_edges={t: list(edges) for t, edges in sample.shape.edges_per_hop.items()},
        indptr=sample.indptr,
        first_target=sample.first_target,
    )
