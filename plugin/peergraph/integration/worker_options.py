"""Options of torch's ``DataLoader`` that only matter to worker processes."""

from __future__ import annotations

WORKER_OPTIONS = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
)
"""Loaders over a store on a GPU drop them: the process that owns the CUDA context samples."""
