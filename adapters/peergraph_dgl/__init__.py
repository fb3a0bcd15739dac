"""DGL adapter of Peergraph: one graph for all ranks, read by DGL's own loaders.

Import it before ``dgl``: where DGL's GraphBolt has no native library for the installed torch,
``import dgl`` works after it.
"""

# ruff: noqa: E402

from __future__ import annotations

from .backend.import_dgl import import_dgl

import_dgl()

from .backend import materialize as guard
from .backend.message_passing import install_where_needed, use_kernels
from .graph import store_of as attach
from .graph.columns import StoreColumn
from .graph.share import share
from .graph.storages import TableStorage, TypedStorage
from .graph.store_graph import StoreGraph, from_store
from .graph.store_of import store_of
from .loader import sampling
from .nn.accelerate import accelerate, revert

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
