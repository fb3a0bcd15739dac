"""Loaders over a store on a GPU make their batches in the process that owns it."""

from __future__ import annotations

import warnings
from typing import Any

from peergraph.integration import WORKER_OPTIONS
from peergraph.store import Store


def drop_workers(options: dict[str, Any], store: Store) -> None:
    """Removes workers and pinning from a DataLoader's options if the store is on a GPU: only the
    process with the CUDA context can read it, and batches are in GPU memory already.
    """
    if store.device.type != "cuda":
        return
    workers = options.get("num_workers", 0)
    if workers > 0:
        warnings.warn(
            f"the graph is on {store.device}: num_workers={workers} set to 0, "
            "its batches are made on the GPU",
            stacklevel=2,
        )
        for name in WORKER_OPTIONS:
            options.pop(name, None)
    options.pop("pin_memory", None)
