"""A store as GraphBolt's sampling graph and feature store.

Needs DGL 2.1 or later. If GraphBolt's native library for the installed torch is missing, importing
this package defines the operators that GraphBolt's Python code calls.
"""

from __future__ import annotations

try:
    from dgl import graphbolt
except ImportError as error:
    raise ImportError("peergraph_dgl.graphbolt needs DGL 2.1 or later", name="dgl") from error
if not hasattr(graphbolt, "SamplingGraph"):
    raise ImportError("peergraph_dgl.graphbolt needs DGL 2.1 or later", name="dgl")

from ..backend import graphbolt_operators
from .features import FeatureStore, LocalFeature, TableFeature
from .graph import SamplingGraph

graphbolt_operators.define_missing()

__all__ = ["FeatureStore", "LocalFeature", "SamplingGraph", "TableFeature"]
