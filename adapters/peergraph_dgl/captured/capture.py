"""`capture`: the training steps of DGL's loader as CUDA graphs of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from dgl.dataloading import DataLoader, EdgePredictionSampler
from dgl.dataloading.dataloader import DDPTensorizedDataset, TensorizedDataset

from peergraph.integration import CapturedTraining, capture_training, is_split
from peergraph.store import Store

from ..graph.store_of import find_store
from ..loader.sampling import core_of, edge_ids_by_type, ids_by_type
from .block_batches import BlockBatches
from .pair_batches import PairBatches


def capture(
    loader: Any,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any, Any], Any],
    *,
    warmup: int = 3,
    scaler: torch.amp.GradScaler | None = None,
) -> CapturedTraining:
    """Returns the training of a model on a loader's batches, with steps that a GPU runs as CUDA
    graphs: one launch in place of one for each kernel.

    Iterate it once for each epoch; it yields what `loss` returned for each batch, after the step::

        def loss(model, batch):
            input_nodes, output_nodes, blocks = batch
            out = model(blocks, blocks[0].srcdata["feat"])[: len(output_nodes)]
            return F.cross_entropy(out, blocks[-1].dstdata["label"][: len(output_nodes)])

        training = peergraph_dgl.capture(loader, model, optimizer, loss)
        for epoch in range(10):
            for value in training:
                ...

    With `dgl.dataloading.as_edge_prediction_sampler`, a batch has the graphs of pairs, with or
    without one of negatives, as in a loop::

        def loss(model, batch):
            input_nodes, pairs, negatives, blocks = batch
            h = model(blocks, blocks[0].srcdata["feat"])
            scores = torch.cat([score(pairs, h), score(negatives, h)])
            is_pair = torch.arange(len(scores), device=h.device) < pairs.num_edges()
            return F.binary_cross_entropy_with_logits(scores, is_pair.float())

    The batches have the loader's seeds and samples, so the losses are those of a loop over the
    loader. In the blocks, the new nodes of each hop end with padding, and so do the seeds: of the
    last block's destinations, only the first ``len(output_nodes)`` are seeds. Padding changes no
    loss. Batches that are not full, and samples that exceed the fixed length, are trained on as the
    loader makes them, step by step. What holds of `peergraph_pyg.capture` about optimizers, random
    masks, autocast, several GPUs and CPUs holds here, too.

    Args:
        loader: ``dgl.dataloading.DataLoader`` over a shared graph, with ``device=`` the store's and
            seeds of one type; with a ``NeighborSampler``, a ``MultiLayerFullNeighborSampler`` or a
            ``LaborSampler``, or one of them in ``as_edge_prediction_sampler``, whose edges, of one
            type, are excluded or not. Negative samplers of your own must draw from the default
            generators of torch, NumPy or Python; batches for which they draw fewer negatives are
            trained on as the loader makes them. Columns of the graph are read where the loss uses
            them, also those that the sampler does not prefetch.
        model: on the store's device, or a ``DistributedDataParallel`` of such a model. Padding has
            no in-edges in some hops: layers that refuse such nodes need
            ``allow_zero_in_degree=True``.
        optimizer: of the model's parameters: SGD, or one with the option `capturable`, which is
            set.
        loss: called with `model` (the module in it, for ``DistributedDataParallel``) and a batch
            as the loader yields it; returns the loss, a tensor of one number, or a
            tuple that begins with it. It must read nothing on the host.
        warmup: steps of fixed shapes that run step by step before the capture, at least 2.
        scaler: for autocast to float16, as of `peergraph_pyg.capture`.

    Returns:
        An iterable with the loader's length.

    Raises:
        TypeError, ValueError, IndexError: an argument is not as above.
        NotImplementedError: what a captured step does not support, by name: other samplers and
            their options; seeds of several types; norms over all rows; options of
            DistributedDataParallel; other optimizers; when a step runs, autocast to float16
            without `scaler`.
        ValueError: when the first step runs: `loss` depends on rows of padding, or on their number.
        RuntimeError: when a step is captured: it does what a CUDA graph cannot repeat.
    """
    store = _check_loader(loader)
    is_of_edges = isinstance(loader.graph_sampler, EdgePredictionSampler)
    batches = (PairBatches if is_of_edges else BlockBatches)(loader, store)
    return capture_training(batches, model, optimizer, loss, warmup, scaler)


def _check_loader(loader: Any) -> Store:
    """Returns the store of a loader whose batches can have a fixed shape; errors as above."""
    if type(loader).__module__.startswith("dgl.graphbolt"):
        raise NotImplementedError(
            "loader: loaders of GraphBolt are not supported by capture, use a "
            "dgl.dataloading.DataLoader over the shared graph"
        )
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a dgl.dataloading.DataLoader, got {type(loader).__name__}")
    graph, store = loader.graph, find_store(loader.graph)
    if store is None:
        raise TypeError("loader: it is not over a graph that peergraph_dgl.share() returned")
    sampler = loader.graph_sampler
    is_of_edges = type(sampler) is EdgePredictionSampler
    core_of(sampler.sampler if is_of_edges else sampler, graph)
    has_ids = isinstance(loader.dataset, (TensorizedDataset, DDPTensorizedDataset))
    refused = {
        "indices of several types": isinstance(loader.indices, Mapping) and len(loader.indices) > 1,
        "indices that are a dataset": not has_ids,
        "output_device of the sampler": sampler.output_device not in (None, store.device),
        'machines="shard"': is_split(store),
    }
    for name, is_set in refused.items():
        if is_set:
            raise NotImplementedError(f"loader: {name} is not supported by capture")
    if loader.device != store.device:
        raise ValueError(
            f"loader: expected device={str(store.device)!r}, where the store is, got "
            f"{str(loader.device)!r}"
        )
    kind = "edges" if is_of_edges else "nodes"
    by_type = (edge_ids_by_type if is_of_edges else ids_by_type)(graph, loader.indices)
    for of_type, ids in by_type.items():
        count = (graph.num_edges if is_of_edges else graph.num_nodes)(of_type)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
            raise IndexError(f"indices: an id is out of range for {count} {kind}")
    return store
