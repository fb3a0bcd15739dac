"""Checks that a loss does not depend on rows of padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from peergraph.sampling import StaticShapeSample
from peergraph.store import EDGE, NODE

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
    padding, padding_row = sample.is_padding(NODE), sample.shape.padding_row(NODE)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [padding.device] if padding.is_cuda else []
    losses = []
    with torch.no_grad():
        for changed in (False, True):
            batch = batches(1 if changed and padding_row > 1 else 0)
            if changed:
                _change(batch, batch.is_node_attr, padding)
                _change(batch, batch.is_edge_attr, padding[sample.col[EDGE]])
            with torch.random.fork_rng(devices=devices):
                losses.append(float(loss(model, batch)))
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    same = math.isclose(*losses, rel_tol=_TOLERANCE, abs_tol=1e-6)
    if not same and not math.isnan(losses[0]):
        raise ValueError(
            f"loss: it depends on rows of padding, {losses[0]:.6g} with some values in them and "
            f"{losses[1]:.6g} with others. Padding follows the nodes of each hop: a loss may use "
            "the first batch.batch_size rows only, and no module may compute over all rows"
        )


def _change(batch: Any, is_of: Callable[[str], bool], is_padding: Tensor) -> None:
    """Writes other numbers into the rows of padding of the floating-point attributes of a kind."""
    for name, value in list(batch.items()):
        is_rows = isinstance(value, Tensor) and value.dim() > 0 and is_of(name)
        if not is_rows or not value.is_floating_point() or len(value) != len(is_padding):
            continue
        rows = is_padding.view(-1, *[1] * (value.dim() - 1))
        batch[name] = torch.where(rows, 10 - 3 * value, value)
