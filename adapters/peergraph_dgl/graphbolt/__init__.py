"""GraphBolt over a store: a sampling graph, features, and the operators its pipelines need.

Needs DGL 2.1 or later. Where GraphBolt's native library for the installed torch is missing, the
operators that its Python code calls are defined when this is imported, on torch's own.
"""

from __future__ import annotations

try:
    from dgl import graphbolt
except ImportError as error:
    raise ImportError("peergraph_dgl.graphbolt needs DGL 2.1 or later", name="dgl") from error
if not hasattr(graphbolt, "SamplingGraph"):
    raise ImportError("peergraph_dgl.graphbolt needs DGL 2.1 or later", name="dgl")

from ..backend import graphbolt_operators
from .features import PrivateFeature, StoreFeature, StoreFeatures
from .graph import StoreSamplingGraph

graphbolt_operators.define_missing()

__all__ = ["PrivateFeature", "StoreFeature", "StoreFeatures", "StoreSamplingGraph"]
