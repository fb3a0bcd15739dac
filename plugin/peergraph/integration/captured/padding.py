"""Padding of batches, which are like any others, and the check that losses ignore it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from peergraph.integration.captured.static_shapes import static_shapes
from peergraph.integration.captured.training_batches import BatchRequest, TrainingBatches
from peergraph.sampling import Sample, StaticShapeSample

# Losses may differ by this share. Sums by atomics differ by less.
_TOLERANCE = 1e-3


def check_padding(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], Tensor],
    batches: TrainingBatches,
    request: BatchRequest,
    sample: StaticShapeSample,
    extras: Any,
) -> None:
    """Compares the losses of one batch with different values in its rows of padding, and without
    padding.

    Buffers and modes of the model, and the states of torch's generators, stay as they are.
    Synchronises.

    Args:
        model: the model.
        loss: of the model and a batch.
        batches: makes the batch.
        request: of the batch.
        sample, extras: of the batch.

    Raises:
        ValueError: the losses differ.
    """
    padding = {t: sample.is_padding(t) for t in sample.nodes}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [batches.store.device] if batches.store.device.type == "cuda" else []

    def padded_loss(pad_with: int = 0) -> float:
        with static_shapes():
            batch = batches.make(padded_copy(sample, pad_with), extras)
            if pad_with:
                batches.change_padding(batch, sample, padding)
            with torch.random.fork_rng(devices=devices):
                return float(loss(model, batch))

    def loader_loss(other_numbers: bool = False) -> float:
        batch, _ = batches.draw(request)
        with torch.random.fork_rng(devices=devices):
            if other_numbers:
                for device in (torch.device("cpu"), *devices):
                    torch.rand((), device=device)
            return float(loss(model, batch))

    with torch.no_grad():
        try:
            some, others = padded_loss(), padded_loss(1)
            if not _is_close(some, others, _TOLERANCE):
                raise ValueError(_different_values(some, others))
            # If the loss depends on random numbers, such as dropout's, modules are compared in
            # evaluation mode: with padding there are more rows, so they draw other numbers.
            for context in (nullcontext(model), _evaluation(model)):
                with context:
                    alone = loader_loss()
                    if not _is_close(alone, loader_loss(other_numbers=True), 0.0):
                        continue
                    some = padded_loss()
                if not _is_close(some, alone, _tolerance_of_sizes(model, batches.store.device)):
                    raise ValueError(_different_sizes(some, alone))
                break
        finally:
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _different_values(some: float, others: float) -> str:
    return (
        f"loss: it depends on rows of padding, {some:.6g} with some values in them and "
        f"{others:.6g} with others. Padding follows the nodes of each hop: a loss may use the rows "
        "of seeds only (the first ones, as many as the batch has seeds, or those that an index of "
        "links names), and no module may compute over all rows"
    )


def _different_sizes(some: float, none: float) -> str:
    return (
        f"loss: it depends on rows of padding, {some:.6g} with them and {none:.6g} without. "
        "Numbers of nodes and edges (batch.num_nodes, len(batch.x), batch.num_sampled_nodes) count "
        "them: in place of these, use the number of seeds (batch.batch_size, or the length of the "
        "batch's labels)"
    )


@contextmanager
def _evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Within the context, all modules of a model are in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _is_close(one: float, other: float, tolerance: float) -> bool:
    floor = 1e-6 if tolerance else 0.0
    return math.isnan(one) or math.isclose(one, other, rel_tol=tolerance, abs_tol=floor)


def _tolerance_of_sizes(model: torch.nn.Module, device: torch.device) -> float:
    """Returns the share by which losses with and without padding may differ: how products are
    rounded depends on their shapes.
    """
    narrow = torch.is_autocast_enabled(device.type) or any(
        p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()
    )
    return 5e-2 if narrow else _TOLERANCE


def padded_copy(sample: StaticShapeSample, pad_with: int) -> StaticShapeSample:
    """Returns a copy whose padding repeats one of the seeds; in disjoint samples, it belongs to
    that seed's tree.

    Args:
        sample: with valid padding.
        pad_with: the position of the seed among those of each type; of types without seeds, padding
            stays as it is.
    """
    nodes = {t: ids.clone() for t, ids in sample.nodes.items()}
    for node_type, ids in nodes.items():
        if sample.shape.padding_row(node_type) > 0:
            # If the second row is padding, too, it has the id of the first seed.
            nodes[node_type] = torch.where(sample.is_padding(node_type), ids[pad_with], ids)
    batch = sample.batch
    if batch is not None:
        # There may be one seed alone.
        batch = {
            t: torch.where(sample.is_padding(t), trees.max().clamp(max=pad_with), trees)
            for t, trees in batch.items()
        }
    edge_ids = sample.edge_ids
    return replace(
        sample,
        nodes=nodes,
        batch=batch,
        edge_index={t: edges.clone() for t, edges in sample.edge_index.items()},
        edge_ids=None if edge_ids is None else {t: e.clone() for t, e in edge_ids.items()},
    )


def as_unpadded(sample: StaticShapeSample) -> Sample:
    """Returns a sample with the same memory, in which padding is nodes and edges like others.

    In disjoint samples, padding belongs to the first seed; the vectors that say so are copies.
    """
    batch = sample.batch
    return Sample(
        nodes=sample.nodes,
        row=sample.row,
        col=sample.col,
        edge_ids=sample.edge_ids,
        batch=None if batch is None else {t: trees.clamp(min=0) for t, trees in batch.items()},
        duplicate_counts=None,
        num_sampled_nodes={t: list(rows) for t, rows in sample.shape.rows_per_hop.items()},
        num_sampled_edges={t: list(edges) for t, edges in sample.shape.edges_per_hop.items()},
        indptr=sample.indptr,
        first_target=sample.first_target,
    )
