"""What the adapters of all frameworks have in common; knows no framework but torch."""

from __future__ import annotations

from peergraph.integration.captured.captured_training import CapturedTraining, capture_training
from peergraph.integration.captured.padding import as_unpadded
from peergraph.integration.captured.static_shapes import has_static_shapes
from peergraph.integration.captured.training_batches import (
    BatchRequest,
    SampleCounts,
    TrainingBatches,
    other_values,
    try_positions,
)
from peergraph.integration.exchange_iterator import ExchangeIterator, is_split
from peergraph.integration.explain_log import explain, is_explaining, note, note_fallback
from peergraph.integration.patching import Patches, installed_version
from peergraph.integration.sharing import SplitGraph, share_graph
from peergraph.integration.stateful_loader import StatefulLoader
from peergraph.integration.swapping import check_module, layer_classes, swap_layers
from peergraph.integration.taking_turns import taking_turns
from peergraph.integration.thread_rng import ThreadRng
from peergraph.integration.training_monitor import Monitor, monitor
from peergraph.integration.unsupported import Unsupported, require
from peergraph.integration.worker_options import WORKER_OPTIONS

__all__ = [
    "WORKER_OPTIONS",
    "BatchRequest",
    "CapturedTraining",
    "ExchangeIterator",
    "Monitor",
    "Patches",
    "SampleCounts",
    "SplitGraph",
    "StatefulLoader",
    "ThreadRng",
    "TrainingBatches",
    "Unsupported",
    "as_unpadded",
    "capture_training",
    "check_module",
    "explain",
    "has_static_shapes",
    "installed_version",
    "is_explaining",
    "is_split",
    "layer_classes",
    "monitor",
    "note",
    "note_fallback",
    "other_values",
    "require",
    "share_graph",
    "swap_layers",
    "taking_turns",
    "try_positions",
]
