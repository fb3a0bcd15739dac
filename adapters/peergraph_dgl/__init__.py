"""DGL adapter of Peergraph: one graph for all ranks, read by DGL's own loaders.

Import it before ``dgl``: where DGL's GraphBolt has no native library for the installed torch,
``import dgl`` works after it.
"""

# ruff: noqa: E402

from __future__ import annotations

from .importing import import_dgl

import_dgl()

from . import attach, guard, sampling
from .attach import store_of
from .columns import StoreColumn
from .from_store import StoreGraph, from_store
from .message_passing import install_where_needed, use_kernels
from .nn.swap import accelerate, revert
from .share import share
from .storages import TableStorage, TypedStorage

__all__ = [
    "StoreColumn",
    "StoreGraph",
    "TableStorage",
    "TypedStorage",
    "accelerate",
    "from_store",
    "import_dgl",
    "revert",
    "share",
    "store_of",
    "use_kernels",
]

attach.install()
guard.install()
install_where_needed()
sampling.install()
