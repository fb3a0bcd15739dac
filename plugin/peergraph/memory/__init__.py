"""Memory shared by the ranks of a host, and tables of rows in it (WholeGraph III-B, III-C3)."""

from peergraph.memory.cupy_stream import cupy_stream
from peergraph.memory.group import Group
from peergraph.memory.kernel_argument import table_argument
from peergraph.memory.launching import limit_blocks
from peergraph.memory.measuring import cached_topology, measure_topology
from peergraph.memory.pending import synchronize
from peergraph.memory.region import SharedRegion
from peergraph.memory.table import Table
from peergraph.memory.table_rows import TableRows
from peergraph.memory.tiers import Tiers
from peergraph.memory.topology import Topology

__all__ = [
    "Group",
    "SharedRegion",
    "Table",
    "TableRows",
    "Tiers",
    "Topology",
    "cached_topology",
    "cupy_stream",
    "limit_blocks",
    "measure_topology",
    "synchronize",
    "table_argument",
]
