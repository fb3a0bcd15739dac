"""The batches of a PyG loader, made of samples with or without padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric import nn as pyg_nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import SamplerOutput
from torch_geometric.typing import TensorFrame

from peergraph import sampling
from peergraph.integration import (
    BatchRequest,
    SampleCounts,
    TrainingBatches,
    as_unpadded,
    other_values,
    try_positions,
)
from peergraph.sampling import StaticShapeSample
from peergraph.store import EDGE, NODE, EdgeType, NodeType

from ..loader.batch_csc import cache_csc
from ..loader.exclude_targets import ExcludeTargets
from ..loader.unfinished import begin_output, collected_requests, divide_batch
from ..prefetching.prefetcher import plain_iterator

# Modules whose result for a row depends on other rows, or on their number.
_OVER_ALL_ROWS = (
    pyg_nn.BatchNorm,
    pyg_nn.HeteroBatchNorm,
    pyg_nn.InstanceNorm,
    pyg_nn.GraphNorm,
    pyg_nn.GraphSizeNorm,
    pyg_nn.PairNorm,
    pyg_nn.MeanSubtractionNorm,
    pyg_nn.DiffGroupNorm,
)


class LoaderBatches(TrainingBatches):
    """The batches of a loader, which :func:`check_loader` has checked."""

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
        of_links = (negatives.mode, negatives.amount) if negatives else ()
        return self.core, self._loader.transform_sampler_output, *of_links

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
        is_full = len(index) == self._loader.batch_size
        divisor = None if output.batch is None else output.batch.divisor
        times = {"seed_time": request.seed_time, "seed_start": request.seed_start}
        return BatchRequest(
            _by_type(request.nodes),
            request.seed,
            (output.metadata, divisor),
            is_full,
            request,
            {name: _by_type(of_seeds) for name, of_seeds in times.items() if of_seeds is not None},
            self._excluded(output.metadata),
        )

    def _excluded(self, metadata: Any) -> dict[EdgeType, Tensor]:
        """Returns the links that are removed from the sample, as pairs of seeds."""
        exclude: ExcludeTargets | None = self._loader.transform_sampler_output
        if exclude is None:
            return {}
        has_types = isinstance(self._loader.data, HeteroData)
        pairs: dict[EdgeType, list[Tensor]] = {}
        for edge_type, *ends in exclude.links(
            metadata, self.store.edge_types if has_types else None
        ):
            pairs.setdefault(edge_type or EDGE, []).append(torch.stack(ends).cpu())
        return {edge_type: torch.cat(of_type, 1) for edge_type, of_type in pairs.items()}

    def try_indices(self) -> Iterator[Tensor]:
        """Yields the positions of the seeds of some full batches."""
        loader = self._loader
        in_order = isinstance(loader.sampler, SequentialSampler)
        return try_positions(len(loader.dataset), loader.batch_size, in_order=in_order)

    def draw(self, request: BatchRequest) -> tuple[Any, SampleCounts]:
        """Returns the batch as the loader makes it, and the counts of its sample.

        The tensors of a request are on the store's device in it, as in other batches.
        """
        origin = copy.copy(request.origin)  # it may be drawn again
        origin.output = out = copy.copy(origin.output)
        origin.finish(None)
        out.metadata, _ = self.on_device(request.extras)
        return self._loader.filter_fn(out), _counts_of(out)

    def make(self, sample: StaticShapeSample, extras: Any) -> Any:
        """Returns the batch of a sample. It shares the sample's memory, without a pass over nodes
        or edges.
        """
        padded = as_unpadded(sample)
        out = self._sampler.output_of(padded)
        out.metadata, divisor = extras
        divide_batch(out, divisor)
        cache_csc(padded)
        loader = copy.copy(self._loader)
        loader.transform_sampler_output = None  # the links have been excluded already
        return loader.filter_fn(out)

    def change_padding(
        self, batch: Any, sample: StaticShapeSample, padding: dict[NodeType, Tensor]
    ) -> None:
        """Changes the floating-point attributes."""
        if isinstance(batch, Data):
            _change_rows(batch, batch.is_node_attr, padding[NODE])
            _change_rows(batch, batch.is_edge_attr, padding[NODE][sample.col[EDGE]])
            return
        for node_type in batch.node_types:
            _change_rows(batch[node_type], lambda _: True, padding[node_type])
        for edge_type in batch.edge_types:
            is_padding = padding[edge_type[2]][sample.col[edge_type]]
            _change_rows(batch[edge_type], lambda _: True, is_padding)

    def mixes_rows(self, module: torch.nn.Module) -> bool:
        """Returns whether a module is a norm of PyG over all rows."""
        graph_mode = isinstance(module, pyg_nn.LayerNorm) and module.mode == "graph"
        return graph_mode or (isinstance(module, _OVER_ALL_ROWS) and module.training)


def _by_type(of_seeds: Tensor | dict[NodeType, Tensor]) -> dict[NodeType, Tensor]:
    """Returns values of seeds, such as ids or times, by node type and on the CPU."""
    by_type = {NODE: of_seeds} if isinstance(of_seeds, Tensor) else of_seeds
    return {node_type: values.cpu() for node_type, values in by_type.items()}


def _counts_of(out: Any) -> SampleCounts:
    nodes, edges = out.num_sampled_nodes, out.num_sampled_edges
    if isinstance(out, SamplerOutput):
        return SampleCounts({NODE: nodes}, {EDGE: edges})
    return SampleCounts(dict(nodes), dict(edges))


def _change_rows(storage: Any, is_of: Callable[[str], bool], is_padding: Tensor) -> None:
    for name, value in list(storage.items()):
        # Labels of links do not belong to the sampled edges, even if there are as many.
        if name == "edge_label" or not isinstance(value, (Tensor, TensorFrame)):
            continue
        is_rows = isinstance(value, TensorFrame) or value.dim() > 0
        if is_rows and is_of(name) and len(value) == len(is_padding):
            storage[name] = _other_rows(value, is_padding)


def _other_rows(rows: Any, is_padding: Tensor) -> Any:
    """Returns :func:`other_values` of rows; a frame, and joined columns, are changed in place."""
    if isinstance(rows, Tensor):
        return other_values(rows, is_padding)
    if isinstance(rows, TensorFrame):
        rows.feat_dict = {t: _other_rows(of, is_padding) for t, of in rows.feat_dict.items()}
        rows.y = None if rows.y is None else other_values(rows.y, is_padding)
    elif isinstance(rows, dict):
        return {key: _other_rows(of, is_padding) for key, of in rows.items()}
    else:
        rows.values = other_values(rows.values, is_padding)
    return rows
