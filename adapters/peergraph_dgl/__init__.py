"""DGL adapter of Peergraph: all ranks read one graph, through DGL's own loaders and layers.

Import it before ``dgl``: ``import dgl`` then works even if GraphBolt has no native library for the
installed torch.
"""

# ruff: noqa: E402

from __future__ import annotations

from .backend.import_dgl import import_dgl

import_dgl()

from peergraph.integration import CapturedTraining, explain

from .backend import materialize
from .backend.message_passing import install_where_needed, use_kernels
from .captured.capture import capture
from .fullgraph.build import full_graph
from .graph import store_of as attached_stores
from .graph.columns import StoreColumn
from .graph.share import share
from .graph.storages import TableStorage, TypedStorage
from .graph.store_graph import StoreGraph, from_store
from .graph.store_of import store_of
from .loader import sampling
from .loader.resume import stateful
from .nn.accelerate import accelerate, revert

__all__ = [
    "CapturedTraining",
    "StoreColumn",
    "StoreGraph",
    "TableStorage",
    "TypedStorage",
    "accelerate",
    "capture",
    "explain",
    "from_store",
    "full_graph",
    "import_dgl",
    "revert",
    "share",
    "stateful",
    "store_of",
    "use_kernels",
]

attached_stores.install()
materialize.install()
install_where_needed()
sampling.install()
