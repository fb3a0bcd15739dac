"""The batches of DGL's loader, made of samples with or without padding."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import dgl
import torch
from torch import Tensor

from peergraph.integration import (
    BatchRequest,
    SampleCounts,
    TrainingBatches,
    as_unpadded,
    other_values,
    try_positions,
)
from peergraph.sampling import NeighborSampler, Sample, StaticShapeSample, exclude_edges, next_seed
from peergraph.store import NodeType, Store

from ..loader.blocks import to_blocks
from ..loader.sampling import core_of, ids_by_type


class BlockBatches(TrainingBatches):
    """The batches of a loader: input nodes, output nodes and blocks.

    Args:
        loader: that :func:`capture` has checked.
        store: of its graph.
    """

    def __init__(self, loader: Any, store: Store) -> None:
        super().__init__(loader, store)
        self._graph = loader.graph

    @property
    def core(self) -> NeighborSampler:
        """The core's sampler with the present settings of the loader's sampler."""
        return core_of(self._block_sampler, self._graph)

    @property
    def _block_sampler(self) -> Any:
        return self._loader.graph_sampler

    def indices(self) -> Iterator[Any]:
        """Yields the seeds of each batch, in the order of the loader's own code."""
        loader = copy.copy(self._loader)
        loader.collate_fn, loader.num_workers = _unchanged, 0
        if loader.shuffle:
            loader.dataset.shuffle()
        return torch.utils.data.DataLoader.__iter__(loader)

    def begin(self, index: Any) -> BatchRequest:
        """Begins the batch of these seeds, a tensor, or a dict of one by node type."""
        nodes = ids_by_type(self._graph, index)
        return BatchRequest(nodes, next_seed(), index, self._is_full(index), None)

    def _is_full(self, index: Any) -> bool:
        of_types = index.values() if isinstance(index, Mapping) else [index]
        return bool(sum(map(len, of_types)) == self._loader.dataset.batch_size)

    def try_indices(self) -> Iterator[Any]:
        """Yields the seeds of some full batches."""
        indices, size = self._loader.indices, self._loader.dataset.batch_size
        is_typed = isinstance(indices, Mapping)
        [(name, ids)] = indices.items() if is_typed else [(None, indices)]
        ids = torch.as_tensor(ids)
        for positions in try_positions(len(ids), size, in_order=not self._loader.shuffle):
            yield {name: ids[positions]} if is_typed else ids[positions]

    def draw(self, request: BatchRequest) -> tuple[Any, SampleCounts]:
        """Returns the batch as the loader makes it, and the counts of its sample."""
        sample = self.core.sample(request.nodes, request.seed)
        counts = SampleCounts(dict(sample.num_sampled_nodes), dict(sample.num_sampled_edges))
        if request.excluded:
            sample = exclude_edges(sample, request.excluded)
        return self._batch_of(sample, self.on_device(request.extras)), counts

    def make(self, sample: StaticShapeSample, extras: Any) -> Any:
        """Returns the batch of a sample; its blocks share the sample's memory."""
        return self._batch_of(as_unpadded(sample), extras)

    def _batch_of(self, sample: Sample, output_nodes: Any) -> Any:
        blocks = to_blocks(sample, self._graph)
        return blocks[0].srcdata[dgl.NID], output_nodes, blocks

    def change_padding(
        self, batch: Any, sample: StaticShapeSample, padding: dict[NodeType, Tensor]
    ) -> None:
        """Changes the floating-point columns of all blocks."""
        blocks = batch[-1]
        for hop, block in enumerate(reversed(blocks)):
            for node_type in block.srctypes:
                change_columns(block.srcnodes[node_type].data, padding[node_type])
            for node_type in block.dsttypes:
                change_columns(block.dstnodes[node_type].data, padding[node_type])
            for edge_type in block.canonical_etypes:
                begin, end = sample.shape.edge_offsets(edge_type)[hop : hop + 2]
                targets = sample.col[edge_type][begin:end]
                change_columns(block.edges[edge_type].data, padding[edge_type[2]][targets.long()])


def change_columns(columns: Any, is_padding: Tensor) -> None:
    """Writes :func:`other_values` to the first rows of a view of columns."""
    for name, rows in list(columns.items()):
        if rows.is_floating_point():
            columns[name] = other_values(rows, is_padding[: len(rows)])


def _unchanged(seeds: Any) -> Any:
    return seeds
