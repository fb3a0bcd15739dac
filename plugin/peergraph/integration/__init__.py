"""What the adapters of all frameworks have in common; knows no framework but torch."""

from __future__ import annotations

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
    "ExchangeIterator",
    "Monitor",
    "Patches",
    "SplitGraph",
    "StatefulLoader",
    "ThreadRng",
    "Unsupported",
    "check_module",
    "explain",
    "installed_version",
    "is_explaining",
    "is_split",
    "layer_classes",
    "monitor",
    "note",
    "note_fallback",
    "require",
    "share_graph",
    "swap_layers",
    "taking_turns",
]
