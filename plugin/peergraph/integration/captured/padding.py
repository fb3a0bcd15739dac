"""Rows of padding: batches with padding like any others, and losses that must not see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from peergraph.integration.captured.training_batches import TrainingBatches
from peergraph.sampling import Sample, StaticShapeSample

# What padding may change in a loss: kernels that add by atomics differ by less.
_TOLERANCE = 1e-3


def check_padding(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], Tensor],
    batches: TrainingBatches,
    sample: StaticShapeSample,
    extras: Any,
) -> None:
    """Computes the loss of one batch twice, with other values in its rows of padding.

    Buffers of the model, and the state of torch's generators, stay the same. Synchronises.

    Args:
        model: the model.
        loss: of the model and a batch.
        batches: makes the batch.
        sample, extras: of the batch.

    Raises:
        ValueError: the losses differ.
    """
    padding = {t: sample.is_padding(t) for t in sample.nodes}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    device = next(iter(padding.values())).device
    devices = [device] if device.type == "cuda" else []
    losses = []
    with torch.no_grad():
        for changed in (False, True):
            batch = batches.make(padded_copy(sample, int(changed)), extras)
            if changed:
                batches.change_padding(batch, sample, padding)
            with torch.random.fork_rng(devices=devices):
                losses.append(float(loss(model, batch)))
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    same = math.isclose(*losses, rel_tol=_TOLERANCE, abs_tol=1e-6)
    if not same and not math.isnan(losses[0]):
        raise ValueError(
            f"loss: it depends on rows of padding, {losses[0]:.6g} with some values in them and "
            f"{losses[1]:.6g} with others. Padding follows the nodes of each hop: a loss may use "
            "the rows of seeds only (the first ones, as many as the batch has seeds, or those that "
            "an index of links names), and no module may compute over all rows"
        )


def padded_copy(sample: StaticShapeSample, pad_with: int) -> StaticShapeSample:
    """Returns a copy in which padding of the seeds' types is one of the seeds, if there are as
    many, and padding of disjoint samples belongs to it.

    Args:
        sample: with valid padding.
        pad_with: which of the seeds.
    """
    nodes = {t: ids.clone() for t, ids in sample.nodes.items()}
    for node_type, ids in nodes.items():
        if sample.shape.padding_row(node_type) > 0:
            # If the second row is padding, too, it has the id of the first seed.
            nodes[node_type] = torch.where(sample.is_padding(node_type), ids[pad_with], ids)
    batch = sample.batch
    if batch is not None:
        batch = {
            t: torch.where(sample.is_padding(t), pad_with, trees) for t, trees in batch.items()
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
