"""The graph store: structure and tables spread over the ranks' memory by a plan."""

from peergraph.store.hotness import Hotness
from peergraph.store.ids import IdMap
from peergraph.store.kernel_argument import graph_argument
from peergraph.store.measured import ItemReads, Measurement
from peergraph.store.memory_use import MemoryUse
from peergraph.store.plan import Placement, Plan
from peergraph.store.source import (
    EDGE,
    NODE,
    EdgeSource,
    EdgeType,
    GraphSource,
    NodeType,
    RowSource,
)
from peergraph.store.store import Store
from peergraph.store.store_tensor import StoreTensor, implements, plain
from peergraph.store.structure import Structure
from peergraph.store.table_tensor import TableTensor

__all__ = [
    "EDGE",
    "NODE",
    "EdgeSource",
    "EdgeType",
    "GraphSource",
    "Hotness",
    "IdMap",
    "ItemReads",
    "Measurement",
    "MemoryUse",
    "NodeType",
    "Placement",
    "Plan",
    "RowSource",
    "Store",
    "StoreTensor",
    "Structure",
    "TableTensor",
    "graph_argument",
    "implements",
    "plain",
]
