"""`capture`: a loader's training steps as CUDA graphs of fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from peergraph.integration import CapturedTraining, capture_training

from .loader_batches import LoaderBatches
from .requirements import check_loader


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
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            return F.cross_entropy(out, batch.y[: batch.batch_size])

        training = peergraph_pyg.capture(loader, model, optimizer, loss)
        for epoch in range(10):
            for value in training:
                ...

    The batches have the loader's seeds and samples, so the losses are those of a loop over the
    loader. Their arrays have a fixed length and end with padding in each hop, which changes no
    loss. Batches that are not full, such as the last one, and samples that exceed the fixed length
    are trained on as the loader makes them, step by step. Random masks (dropout) have the
    distribution of those of the loop, not its numbers, because the arrays are longer.

    On a GPU one CUDA graph draws the next sample while another one trains. Learning rates of Adam
    and AdamW become tensors, which schedulers write to, and their steps are torch's fused ones
    unless `fused` or `foreach` was set; after a change of other settings of the optimizer, of the
    model's mode or of autocast, the graphs are made anew. Parameters have no gradients after a
    replay. On CPUs all steps run one by one.

    Args:
        loader: ``NeighborLoader`` or ``LinkNeighborLoader`` over ``Data`` or ``HeteroData`` that
            :func:`share` returned, also with weights, times or disjoint, and with frames of PyTorch
            Frame without lists. Its order of seeds, `shuffle`, `drop_last` and negatives are kept,
            and :class:`ExcludeTargets`, unless disjoint; workers are not used.
        model: on the store's device. No module of it may compute over all rows of a batch, as
            ``BatchNorm`` does. Or a ``DistributedDataParallel`` of such a model, whose ranks are
            those of the store: gradients are averaged within the graph. All ranks then call
            ``capture`` and iterate at the same time, and make the same kind of step: if a batch
            exceeds the fixed length on one rank, all train on batches as their loaders make them.
        optimizer: of the model's parameters: SGD, or one with the option `capturable`, which is
            set.
        loss: called with `model` (the module in it, for ``DistributedDataParallel``) and a batch;
            returns the loss, a tensor of one number, or a tuple that begins with it. It must read
            nothing on the host; numbers of Python in it are those of the moment of the capture. In
            the batch, rows from ``batch.batch_size`` on, and of links those that no index of them
            names, may be padding, which has a seed's attributes. All tensors, also labels and
            indices of links, are on the store's device.
        warmup: steps of fixed shapes that run step by step before the capture, at least 2.
        scaler: for autocast to float16: scales the loss, unscales the gradients before the
            optimizer's step (hooks of the step see them unscaled), and is updated after it. On a
            GPU with Adam, AdamW or ``SGD(fused=True)``.

    Returns:
        An iterable with the loader's length.

    Raises:
        TypeError, ValueError, IndexError: an argument is not as above.
        NotImplementedError: what a captured step does not support, by name: other loaders and data,
            `transform`, other functions as `transform_sampler_output`, frames with lists, other
            classes of negatives; norms over all rows; options of DistributedDataParallel; other
            optimizers; when a step runs, autocast to float16 without `scaler`.
        ValueError: when the first step runs: `loss` depends on rows of padding, or on their number.
        RuntimeError: when a step is captured: it does what a CUDA graph cannot repeat.
    """
    batches = LoaderBatches(loader, check_loader(loader))
    return capture_training(batches, model, optimizer, loss, warmup, scaler)
