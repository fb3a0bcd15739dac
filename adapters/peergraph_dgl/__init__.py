"""DGL adapter of Peergraph: one graph for all ranks, read by DGL's own loaders.

Import it before ``dgl``: where DGL's GraphBolt has no native library for the installed torch,
``import dgl`` works after it.
"""

from __future__ import annotations

from .importing import import_dgl

import_dgl()

from .message_passing import install_where_needed, use_kernels  # noqa: E402

install_where_needed()

__all__ = ["import_dgl", "use_kernels"]
