"""PyG's layer-wise inference with loaders whose batches are on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..data.store_of import find_store


def infer_by_layers(
    original: Callable[..., Any],
    self: Any,
    loader: Any,
    device: Any = None,
    embedding_device: Any = "cpu",
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Takes the place of ``BasicGNN.inference``, which computes the rows of all nodes by layer.

    PyG keeps the rows of a layer on `embedding_device` and selects from them by the ids of each
    batch. The ids of a store on a GPU are moved to that device first.
    """
    store = find_store(getattr(loader, "data", None))
    device_of_rows = torch.device(embedding_device)
    if store is None or store.device.type in ("cpu", device_of_rows.type):
        return original(self, loader, device, embedding_device, *args, **kwargs)
    transform = loader.transform

    def move_ids(batch: Any) -> Any:
        batch = batch if transform is None else transform(batch)
        batch.n_id = batch.n_id.to(device_of_rows)
        return batch

    loader.transform = move_ids
    try:
        return original(self, loader, device, embedding_device, *args, **kwargs)
    finally:
        loader.transform = transform
