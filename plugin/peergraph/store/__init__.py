"""The graph store: structure and tables spread over the ranks' memory by a plan."""

from peergraph.store.csc.neighbor_lists import CscRange
from peergraph.store.csc.tiered_csc import TieredCsc
from peergraph.store.hotness.hotness import Hotness
from peergraph.store.hotness.id_map import IdMap
from peergraph.store.ingest.graph_files import (
    Columns,
    CsvFormat,
    EdgeFiles,
    GraphFiles,
    NodeFiles,
    Rows,
    TableFiles,
)
from peergraph.store.ingest.ingest_report import BadRows, BadRowsError, IngestReport
from peergraph.store.input.frame_spec import TARGET, VALUES, FrameField, FrameSpec, list_type
from peergraph.store.input.source import (
    EDGE,
    NODE,
    EdgeSource,
    EdgeType,
    GraphSource,
    NodeType,
    RowSource,
    reverse_type,
)
from peergraph.store.kernel_argument import graph_argument
from peergraph.store.placement.options import PlacementOptions
from peergraph.store.placement.plan import Placement, Plan
from peergraph.store.report.memory_use import MemoryUse
from peergraph.store.report.read_report import ItemReads, ReadReport
from peergraph.store.search.top_k import TopK, top_k
from peergraph.store.store import Store
from peergraph.store.tensors.storageless_tensor import StoragelessTensor, dispatch_mode
from peergraph.store.tensors.store_tensor import StoreTensor, implements
from peergraph.store.tensors.table_tensor import TableTensor

__all__ = [
    "EDGE",
    "NODE",
    "TARGET",
    "VALUES",
    "BadRows",
    "BadRowsError",
    "Columns",
    "CscRange",
    "CsvFormat",
    "EdgeFiles",
    "EdgeSource",
    "EdgeType",
    "FrameField",
    "FrameSpec",
    "GraphFiles",
    "GraphSource",
    "Hotness",
    "IdMap",
    "IngestReport",
    "ItemReads",
    "MemoryUse",
    "NodeFiles",
    "NodeType",
    "Placement",
    "PlacementOptions",
    "Plan",
    "ReadReport",
    "RowSource",
    "Rows",
    "StoragelessTensor",
    "Store",
    "StoreTensor",
    "TableFiles",
    "TableTensor",
    "TieredCsc",
    "TopK",
    "dispatch_mode",
    "graph_argument",
    "implements",
    "list_type",
    "reverse_type",
    "top_k",
]
