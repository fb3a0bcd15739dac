"""Exact training on a whole graph over several GPUs (MG-GCN, MGG)."""

from peergraph.fullgraph.captured_step import CapturedStep, capture
from peergraph.fullgraph.dry_run.model_recorder import (
    ModelLoss,
    ModelRecorder,
    Partition,
    record_model,
)
from peergraph.fullgraph.dry_run.named_models import named_model
from peergraph.fullgraph.dry_run.small_graph import SmallGraph, sample_rows
from peergraph.fullgraph.full_graph_options import FullGraphOptions
from peergraph.fullgraph.graph import FullGraph
from peergraph.fullgraph.graph_arguments import refuse_partitioned
from peergraph.fullgraph.layout.duplication import Duplication, count_duplication, cut_chunks
from peergraph.fullgraph.layout.node_parts import node_parts
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.write_rows import write_rows
from peergraph.fullgraph.plan.full_graph_plan import FullGraphPlan
from peergraph.fullgraph.plan.plan_limits import PlanLimits
from peergraph.fullgraph.plan.schedule import RecordedModel
from peergraph.fullgraph.random.plain_tensors import keyed_random
from peergraph.fullgraph.structure.edge_call import EdgeCall
from peergraph.fullgraph.structure.edge_changes import (
    LoopStructure,
    select_edge_layout,
    select_edge_rows,
    select_edges,
    self_loop_mask,
    with_self_loops,
    without_self_loops,
)
from peergraph.fullgraph.structure.edge_index import PartitionedEdgeIndex
from peergraph.fullgraph.structure.edge_reversal import (
    EdgeReversal,
    reverse_edges,
    with_reversed_edges,
)
from peergraph.fullgraph.structure.joint_softmax import joint_softmax
from peergraph.fullgraph.structure.node_index import NodeIndex
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc
from peergraph.fullgraph.structure.partitioned_structure import PartitionedStructure, kept_ends
from peergraph.fullgraph.structure.shared_rows import share_rows
from peergraph.fullgraph.tensor.conversions import distribute, from_local, like, replicated
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor
from peergraph.fullgraph.tensor.selection import in_layout
from peergraph.fullgraph.tensor.uncompiled import run_uncompiled

run_uncompiled(__name__)

__all__ = [
    "CapturedStep",
    "Duplication",
    "EdgeCall",
    "EdgeReversal",
    "FullGraph",
    "FullGraphOptions",
    "FullGraphPlan",
    "LoopStructure",
    "ModelLoss",
    "ModelRecorder",
    "NodeIndex",
    "Partition",
    "PartitionedCsc",
    "PartitionedEdgeIndex",
    "PartitionedStructure",
    "PartitionedTensor",
    "PlanLimits",
    "RecordedModel",
    "RowLayout",
    "SmallGraph",
    "capture",
    "count_duplication",
    "cut_chunks",
    "distribute",
    "from_local",
    "in_layout",
    "joint_softmax",
    "kept_ends",
    "keyed_random",
    "like",
    "named_model",
    "node_parts",
    "record_model",
    "refuse_partitioned",
    "replicated",
    "reverse_edges",
    "sample_rows",
    "select_edge_layout",
    "select_edge_rows",
    "select_edges",
    "self_loop_mask",
    "share_rows",
    "with_reversed_edges",
    "with_self_loops",
    "without_self_loops",
    "write_rows",
]
