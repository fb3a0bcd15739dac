"""Memory shared by the ranks of a host, and tables of rows in it (WholeGraph III-B, III-C3)."""

from peergraph.memory.device.capture_mode import use_thread_local_capture_mode
from peergraph.memory.device.content_check import ContentCheck
from peergraph.memory.device.cuda_graph import record_cuda_graph
from peergraph.memory.device.cupy_stream import cupy_stream
from peergraph.memory.device.launching import limit_blocks
from peergraph.memory.device.pending_errors import synchronize
from peergraph.memory.device.thread_stream import on_thread_stream
from peergraph.memory.distributed.distributed_table import DistributedTable, RemoteRowsError
from peergraph.memory.distributed.exchange_session import ExchangeSession
from peergraph.memory.distributed.fetched_rows import FetchedRows
from peergraph.memory.distributed.network_traffic import NetworkTraffic
from peergraph.memory.distributed.row_exchange import RowExchange
from peergraph.memory.group.collective_call import collective_call
from peergraph.memory.group.group import Group
from peergraph.memory.group.machines import Machines
from peergraph.memory.group.world_group import WorldGroup
from peergraph.memory.region.region import SharedRegion
from peergraph.memory.table.encoded_rows import EncodedRows
from peergraph.memory.table.gather_tables import gather_tables
from peergraph.memory.table.host_rows import host_rows
from peergraph.memory.table.kernel_argument import table_argument
from peergraph.memory.table.list_table import ListRows, ListTable, list_places
from peergraph.memory.table.narrow_table import NarrowTable
from peergraph.memory.table.row_codec import RowCodec
from peergraph.memory.table.storage_report import StorageReport
from peergraph.memory.table.table import Table
from peergraph.memory.table.table_rows import TableRows
from peergraph.memory.table.tiers import Tiers
from peergraph.memory.topology.measure import cached_topology, measure_topology
from peergraph.memory.topology.topology import Topology

__all__ = [
    "ContentCheck",
    "DistributedTable",
    "EncodedRows",
    "ExchangeSession",
    "FetchedRows",
    "Group",
    "ListRows",
    "ListTable",
    "Machines",
    "NarrowTable",
    "NetworkTraffic",
    "RemoteRowsError",
    "RowCodec",
    "RowExchange",
    "SharedRegion",
    "StorageReport",
    "Table",
    "TableRows",
    "Tiers",
    "Topology",
    "WorldGroup",
    "cached_topology",
    "collective_call",
    "cupy_stream",
    "gather_tables",
    "host_rows",
    "limit_blocks",
    "list_places",
    "measure_topology",
    "on_thread_stream",
    "record_cuda_graph",
    "synchronize",
    "table_argument",
    "use_thread_local_capture_mode",
]
