"""Peergraph: the memory of all GPUs of a machine, and its host memory, as one graph store."""

from __future__ import annotations

import logging
from importlib.metadata import version

# First, so that a broken installation is explained before anything else fails.
from peergraph import _native as _native
from peergraph import optim
from peergraph.errors import PeerLostError
from peergraph.forks import keep_torch_usable_in_children
from peergraph.gpus import num_gpus
from peergraph.headers import include_path
from peergraph.integration import explain, monitor
from peergraph.memory.device.pending_errors import synchronize
from peergraph.store.embedding.embedding import Embedding
from peergraph.store.embedding.embedding_state import EmbeddingState
from peergraph.store.search.top_k import top_k

__version__ = version("peergraph")

keep_torch_usable_in_children()

# Prints nothing unless the program sets up logging: docs/guides/observe.md.
logging.getLogger("peergraph").addHandler(logging.NullHandler())

__all__ = [
    "Embedding",
    "EmbeddingState",
    "PeerLostError",
    "__version__",
    "explain",
    "include_path",
    "monitor",
    "num_gpus",
    "optim",
    "synchronize",
    "top_k",
]
