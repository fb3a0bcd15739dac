"""Replaces the functions of PyG that construct samplers, take loaders' options and fill batches.

PyG has no registry for samplers, so importing ``peergraph_pyg`` replaces a few functions. For data
that is not shared they do the same as before.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import (
    ClusterLoader,
    LinkLoader,
    NodeLoader,
    link_loader,
    node_loader,
)
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.sampler import NeighborSampler as PygNeighborSampler

from peergraph.integration import is_split
from peergraph.store import Store

from ..compat import edge_function, patches
from ..data.feature_store import FeatureStore
from ..data.store_of import find_store
from ..everywhere import replace_everywhere
from ..prefetching.prefetcher import is_plain, prefetch
from ..subgraphs import cluster
from ..subgraphs.induced import subgraph
from ..subgraphs.k_hop import k_hop_subgraph
from . import batch_csc, class_swaps
from .filter_batch import filter_data, filter_hetero_data, filter_output
from .hgt_sampler import HGTSampler
from .in_process import drop_workers
from .layerwise_inference import infer_by_layers
from .loader_inputs import complete_inputs
from .negative_edges import negative_sampling, structured_negative_sampling
from .sampler import NeighborSampler
from .seed_order import order_by_tensors
from .windows import with_starts

Function = Callable[..., Any]


def install() -> None:
    """Replaces PyG's functions, once; ``peergraph_pyg.compat.patches.undo()`` restores them."""
    if patches:
        return
    class_swaps.install()
    patches.replace(PygNeighborSampler, "_sample", _sample)
    for loader in (NodeLoader, LinkLoader):
        patches.replace(loader, "__init__", _init_loader)
        patches.replace(loader, "__iter__", _iterate)
        patches.replace(loader, "filter_fn", filter_output)
    for module in (node_loader, link_loader):
        for name in ("filter_custom_store", "filter_custom_hetero_store"):
            patches.replace(module, name, _filter_stores)
        patches.replace(module, "filter_data", filter_data)
        patches.replace(module, "filter_hetero_data", filter_hetero_data)
    patches.replace(ClusterLoader, "__init__", cluster.init_loader)
    patches.replace(ClusterLoader, "_collate", cluster.collate)
    for data in (Data, HeteroData):
        patches.replace(data, "subgraph", subgraph)
    functions: dict[str, Function] = {
        "k_hop_subgraph": k_hop_subgraph,
        "negative_sampling": negative_sampling,
        "structured_negative_sampling": structured_negative_sampling,
    }
    replace_everywhere(patches, {edge_function(name): f for name, f in functions.items()})
    patches.replace(BasicGNN, "inference", infer_by_layers)


def _sample(original: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(self, *args, **kwargs)
    except ImportError as error:
        # The data may have lost its store and its mark.
        raise ImportError(
            f"{error}. Graphs that peergraph_pyg.share(data) returns are sampled without them; "
            "what is made of these is shared again"
        ) from error


def _init_loader(original: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    of_nodes = isinstance(self, NodeLoader)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    options = bound.arguments
    starts = None
    store = find_store(options["data"])
    if store is not None:
        starts = _take_times(options, of_nodes)
        complete_inputs(options, store)
        if is_split(store):
            _gather_in_process(options)
        if store.device.type == "cuda":
            _stay_in_process(options, store)
    original(*bound.args, **bound.kwargs)
    if starts is not None:
        self.input_data = with_starts(self.input_data, starts, _start_name(of_nodes))


def _take_times(options: dict[str, Any], of_nodes: bool) -> Any:
    """Checks times, gives the sampler its window, and returns the starts of the seeds' windows.

    Raises:
        ValueError: the sampler has no times.
    """
    kwargs = options.setdefault("kwargs", {})
    name = "node_sampler" if of_nodes else "link_sampler"
    sampler, window = options[name], kwargs.get("time_window")
    starts = kwargs.pop(_start_name(of_nodes), None)
    time = "input_time" if of_nodes else "edge_label_time"
    times = {time: options.get(time), _start_name(of_nodes): starts, "time_window": window}
    if not isinstance(sampler, NeighborSampler):
        if starts is not None:
            raise ValueError(f"{_start_name(of_nodes)}: {type(sampler).__name__} has no windows")
        return None
    for argument, value in times.items():
        if value is not None and not sampler.is_temporal:
            raise ValueError(
                f"{argument}: the sampler has no time_attr that it could be compared to"
            )
    kwargs.pop("time_window", None)
    if window is not None:
        sampler = options[name] = copy.copy(sampler)  # other loaders may have the sampler, too
        sampler.time_window = window
        sampler.core  # noqa: B018  # reports a wrong window here
    return starts


def _start_name(of_nodes: bool) -> str:
    """Returns the argument of loaders beside ``input_time`` or ``edge_label_time``."""
    return "input_start_time" if of_nodes else "edge_label_start_time"


def _iterate(original: Function, self: Any) -> Any:
    if not is_plain() and prefetches(self):
        return iter(prefetch(self))
    batches = original(self)
    store = find_store(self.data)
    if store is not None:
        order_by_tensors(self, batches)
    if is_split(store):
        # Samples: the last step gathers features. It is PyG's iterator that keeps workers alive.
        batches.transform_fn = _unchanged
    return batches


def _unchanged(sample: Any) -> Any:
    return sample


def prefetches(loader: Any) -> bool:
    """Returns whether a loader prefetches by itself: its sampler samples a store on a GPU, or the
    rows of its batches come from other machines.

    Other samplers may not be safe in a thread, or may draw from generators of their own.
    """
    if isinstance(loader, (NodeLoader, LinkLoader)) and is_split(find_store(loader.data)):
        return True
    sampler = getattr(loader, "node_sampler", None) or getattr(loader, "link_sampler", None)
    if not isinstance(sampler, (NeighborSampler, HGTSampler)):
        return False
    return sampler.store.device.type == "cuda"


def _filter_stores(
    original: Function,
    feature_store: Any,
    graph_store: Any,
    node: Any,
    row: Any,
    col: Any,
    edge: Any,
    *rest: Any,
) -> Any:
    batch = original(feature_store, graph_store, node, row, col, edge, *rest)
    if isinstance(feature_store, FeatureStore):
        feature_store.add_edge_tensors(batch, edge)
        if isinstance(row, dict):
            pairs = [(batch[key].get("edge_index"), row[key]) for key in row]
        else:
            pairs = [(batch.edge_index, row)]
        batch_csc.attach((edges, batch_csc.structure_of(sources)) for edges, sources in pairs)
    return batch


def _gather_in_process(options: dict[str, Any]) -> None:
    """Makes the training process gather features, because it exchanges rows with other machines.

    Raises:
        NotImplementedError: the options make workers gather features.
    """
    workers = options.get("kwargs", {}).get("num_workers", 0)
    if options.get("filter_per_worker") and workers > 0:
        raise NotImplementedError(
            'filter_per_worker=True: with machines="shard" workers cannot gather rows of other '
            'machines; leave it out (workers sample then), or share with machines="replicate"'
        )
    options["filter_per_worker"] = False


def _stay_in_process(options: dict[str, Any], store: Store) -> None:
    """Drops workers: the process that owns the CUDA context samples and reads a store on a GPU."""
    if options.get("filter_per_worker") is None:
        options["filter_per_worker"] = False
    drop_workers(options.setdefault("kwargs", {}), store)
