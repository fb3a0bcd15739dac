"""What a model in captured steps cannot do, refused by name."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel

from peergraph.integration.captured.training_batches import TrainingBatches
from peergraph.store import Store

# Modules whose result for a row depends on other rows.
_OVER_ALL_ROWS = torch.nn.modules.batchnorm._BatchNorm, torch.nn.InstanceNorm1d


def check_model(model: Any, batches: TrainingBatches) -> None:
    """Checks that the model is on the store's device, and that no module mixes rows.

    Raises:
        TypeError: `model` is not a module.
        NotImplementedError: naming the module.
        ValueError: a parameter or buffer is on another device.
    """
    store = batches.store
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, DataParallel):
        raise NotImplementedError("model: DataParallel is not supported by capture")
    if isinstance(model, DistributedDataParallel):
        _check_data_parallel(model, store)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device != store.device:
            raise ValueError(
                f"model: expected it on {store.device}, a tensor is on {tensor.device}"
            )
    check_modules(model, batches)


def _check_data_parallel(model: DistributedDataParallel, store: Store) -> None:
    ranks = dist.get_world_size(model.process_group)
    world = 1 if store.group is None else store.group.world_size
    if store.group is not None and store.group.machines.count > 1:
        raise NotImplementedError(
            "model: DistributedDataParallel over several machines is not supported by capture"
        )
    if ranks != world:
        raise ValueError(f"model: its process group has {ranks} ranks, the store has {world}")
    refused = {
        "a communication hook": bool(model._comm_hooks),
        "mixed_precision": model.mixed_precision is not None,
        "delay_all_reduce_named_params": bool(model._delay_all_reduce_params),
    }
    for name, is_set in refused.items():
        if is_set:
            raise NotImplementedError(
                f"model: {name} of DistributedDataParallel is not supported by capture"
            )
    backends = str(dist.get_backend_config(model.process_group))
    if store.device.type == "cuda" and "nccl" not in backends:
        raise ValueError(
            f"model: its process group must have the backend nccl, which can be captured; it has "
            f"{backends}"
        )


def check_modules(model: torch.nn.Module, batches: TrainingBatches) -> None:
    """Raises NotImplementedError for a module whose result depends on padding rows."""
    for name, module in model.named_modules():
        is_norm = isinstance(module, _OVER_ALL_ROWS) and module.training
        if is_norm or batches.mixes_rows(module):
            raise NotImplementedError(
                f"model.{name}: {type(module).__name__} computes over all rows of a batch, of "
                "which some are padding here; use a norm of each row, such as torch.nn.LayerNorm"
            )
