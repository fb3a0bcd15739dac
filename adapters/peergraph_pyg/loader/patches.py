"""Where PyG's own classes meet shared data: the sampler they construct, the loaders' options.

PyG has no registry for samplers, so importing ``peergraph_pyg`` wraps a few functions of it. Data
that is not Peergraph's passes through them unchanged.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from torch_geometric import typing
from torch_geometric.loader import LinkLoader, NodeLoader, link_loader, node_loader
from torch_geometric.loader import utils as loader_utils
from torch_geometric.sampler import NeighborSampler

from peergraph.store import Store

from ..data.feature_store import PeergraphFeatureStore
from ..data.sparse_adjacency import adjacencies, without
from ..data.store_of import find_store, has_shared_structure, refuse_changed
from ..prefetching.prefetcher import is_plain, prefetch
from . import batch_csc, other_loaders
from .arguments import complete_links, complete_nodes
from .sampler import StoreNeighborSampler

_logger = logging.getLogger("peergraph_pyg")

# DataLoader options that only make sense with worker processes.
_WORKER_OPTIONS = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
)


def install() -> None:
    """Wraps PyG's functions, once."""
    if not hasattr(NeighborSampler.__init__, "__wrapped__"):
        NeighborSampler.__init__ = _wrap_sampler(NeighborSampler.__init__)
        NeighborSampler._sample = _wrap_sample(NeighborSampler._sample)
        NodeLoader.__init__ = _wrap_loader(NodeLoader.__init__, "node_sampler", "input_time")
        LinkLoader.__init__ = _wrap_loader(LinkLoader.__init__, "link_sampler", "edge_label_time")
        for loader in (NodeLoader, LinkLoader):
            loader.__iter__ = _wrap_iter(loader.__iter__)
        for module in (node_loader, link_loader):
            for name in ("filter_custom_store", "filter_custom_hetero_store"):
                setattr(module, name, _wrap_filter(getattr(module, name)))
        loader_utils.filter_node_store_ = _wrap_nodes(loader_utils.filter_node_store_)
        loader_utils.filter_edge_store_ = _wrap_edges(loader_utils.filter_edge_store_)
        other_loaders.install()


def _wrap_sampler(original: Callable[..., None]) -> Callable[..., None]:
    # Not `__new__`, which hides the parameters: PyG's Lightning modules look at them.
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        data = args[0] if args else kwargs.get("data")
        if type(self) is NeighborSampler and has_shared_structure(data):
            self.__class__ = StoreNeighborSampler
            self.__init__(*args, **kwargs)
            return
        if not _pyg_can_sample():
            refuse_changed(data)
        original(self, *args, **kwargs)

    return init


def _pyg_can_sample() -> bool:
    """Whether PyG's own sampler has one of the libraries that it needs."""
    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)


def _wrap_sample(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except ImportError as error:
            # Data may have lost every trace of the store that it came from.
            raise ImportError(
                f"{error}. Graphs that peergraph_pyg.share(data) returns are sampled without them; "
                "what is made of these is shared again"
            ) from error

    return sample


def _wrap_loader(original: Callable[..., None], sampler: str, time: str) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        options = bound.arguments
        store = find_store(options["data"])
        if store is not None:
            own = options[sampler] if isinstance(options[sampler], StoreNeighborSampler) else None
            if own is not None and options.get(time) is not None and not own.is_temporal:
                raise ValueError(
                    f"{time}: the sampler has no time_attr that it could be compared to"
                )
            _complete_inputs(options, store)
            if store.device.type == "cuda":
                _stay_in_process(options, store)
        original(*bound.args, **bound.kwargs)

    return init


def _wrap_iter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        return iter(prefetch(self)) if not is_plain() and _makes_ahead(self) else original(self)

    return iterate


def _makes_ahead(loader: Any) -> bool:
    """Whether a loader prefetches by itself: it samples a store on a GPU.

    Not with another sampler, which may be no good in a thread, or draw from generators of its own.
    """
    sampler = getattr(loader, "node_sampler", None) or getattr(loader, "link_sampler", None)
    return isinstance(sampler, StoreNeighborSampler) and sampler.store.device.type == "cuda"


def _wrap_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def filtered(
        feature_store: Any, graph_store: Any, node: Any, row: Any, col: Any, edge: Any, *rest: Any
    ) -> Any:
        batch = original(feature_store, graph_store, node, row, col, edge, *rest)
        if isinstance(feature_store, PeergraphFeatureStore):
            feature_store.add_edge_tensors(batch, edge)
            if isinstance(row, dict):
                for key in row:
                    batch_csc.hand_over(row[key], batch[key].get("edge_index"))
            else:
                batch_csc.hand_over(row, batch.edge_index)
        return batch

    return filtered


def _wrap_nodes(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def filter_nodes(storage: Any, *rest: Any, **more: Any) -> None:
        # PyG 2.6 cannot tell whether a matrix is an attribute of nodes.
        original(without(storage, dict(adjacencies(storage))), *rest, **more)

    return filter_nodes


def _wrap_edges(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def filter_edges(
        storage: Any, batch: Any, row: Any, col: Any, edge: Any, *rest: Any, **more: Any
    ) -> None:
        shared = dict(adjacencies(storage))
        original(without(storage, shared), batch, row, col, edge, *rest, **more)
        for key, matrix in shared.items():
            batch[key] = matrix.form.of_batch(matrix.store, row, col, edge, batch.size())
        batch_csc.hand_over(row, batch.get("edge_index"))

    return filter_edges


def _complete_inputs(options: dict[str, Any], store: Store) -> None:
    data = options["data"]
    if "node_sampler" in options:
        given, input_id = options.get("input_nodes"), options.get("input_id")
        options["input_nodes"] = complete_nodes(data, given, input_id, store)
    else:
        options["edge_label_index"] = complete_links(data, options.get("edge_label_index"), store)


def _stay_in_process(options: dict[str, Any], store: Store) -> None:
    """A CUDA store is sampled and read by the process that owns the CUDA context."""
    if options.get("filter_per_worker") is None:
        options["filter_per_worker"] = False
    loader_options = options.setdefault("kwargs", {})
    if loader_options.get("num_workers", 0) > 0:
        _logger.warning(
            "the graph is on %s: num_workers=%d set to 0, its batches are made on the GPU",
            store.device,
            loader_options["num_workers"],
        )
        for name in _WORKER_OPTIONS:
            loader_options.pop(name, None)
    # The batches are in GPU memory already, and pinning refuses those.
    loader_options.pop("pin_memory", None)
