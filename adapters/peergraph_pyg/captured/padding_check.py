"""Checks that a loss does not depend on rows of padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from peergraph.sampling import StaticShapeSample
from peergraph.store import EDGE, NODE, NodeType

# What padding may change in a loss: kernels that add by atomics differ by less.
_TOLERANCE = 1e-3


def check_padding(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], Tensor],
    batches: Callable[[int], Any],
    sample: StaticShapeSample,
) -> None:
    """Computes the loss of one batch twice, with other values in its rows of padding.

    Buffers of the model, and the state of torch's generators, stay the same. Synchronises.

    Args:
        model: the model.
        loss: of the model and a batch.
        batches: makes the batch, with the attributes of the k-th seed in its rows of padding.
        sample: the batch's sample.

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
            batch = batches(int(changed))
            if changed:
                _change(batch, sample, padding)
            with torch.random.fork_rng(devices=devices):
                losses.append(float(loss(model, batch)))
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    same = math.isclose(*losses, rel_tol=_TOLERANCE, abs_tol=1e-6)
    if not same and not math.isnan(losses[0]):
        raise ValueError(
            f"loss: it depends on rows of padding, {losses[0]:.6g} with some values in them and "
            f"{losses[1]:.6g} with others. Padding follows the nodes of each hop: a loss may use "
            "the rows of seeds only (the first batch.batch_size ones, or those that an index of "
            "links names), and no module may compute over all rows"
        )


def _change(batch: Any, sample: StaticShapeSample, padding: dict[NodeType, Tensor]) -> None:
    """Writes other numbers into the rows of padding of all floating-point attributes."""
    if isinstance(batch, Data):
        _change_rows(batch, batch.is_node_attr, padding[NODE])
        _change_rows(batch, batch.is_edge_attr, padding[NODE][sample.col[EDGE]])
        return
    for node_type in batch.node_types:
        _change_rows(batch[node_type], lambda _: True, padding[node_type])
    for edge_type in batch.edge_types:
        is_padding = padding[edge_type[2]][sample.col[edge_type]]
        _change_rows(batch[edge_type], lambda _: True, is_padding)


def _change_rows(storage: Any, is_of: Callable[[str], bool], is_padding: Tensor) -> None:
    for name, value in list(storage.items()):
        is_rows = isinstance(value, Tensor) and value.dim() > 0 and is_of(name)
        # Labels of links are no rows of edges, even if there are as many.
        if not is_rows or name == "edge_label" or not value.is_floating_point():
            continue
        if len(value) != len(is_padding):
            continue
        rows = is_padding.view(-1, *[1] * (value.dim() - 1))
        storage[name] = torch.where(rows, 10 - 3 * value, value)
