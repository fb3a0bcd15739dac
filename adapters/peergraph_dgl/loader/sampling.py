"""Runs DGL's samplers and loaders on graphs over a store: all hops in one call, on its device."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import dgl.dataloading
import dgl.sampling
import numpy as np
import torch
from dgl.heterograph import DGLBlock
from torch import Tensor

from peergraph.integration import WORKER_OPTIONS, is_split
from peergraph.sampling import NeighborSampler, exclude_edges, next_seed
from peergraph.store import EdgeType, Store

from ..backend.materialize import materialize
from ..compat import CollateWrapper, frame_columns, new_patches
from ..graph.columns import StoreColumn
from ..graph.store_graph import StoreGraph
from ..graph.store_of import find_store
from . import subgraph_samplers, walks
from .blocks import to_blocks
from .exchange import iterate

_patches = new_patches()

Fanouts = dict[EdgeType, tuple[int, ...]]

_WEIGHT_DTYPES = (torch.float32, torch.float64, torch.bool)


class _Settings(NamedTuple):
    """The arguments of a core sampler."""

    store: Store
    fanouts: tuple[tuple[EdgeType, tuple[int, ...]], ...]
    weights: tuple[tuple[EdgeType, str], ...]
    replace: bool
    labor: bool
    layer_dependency: bool
    idtype: torch.dtype


_samplers: WeakKeyDictionary[Any, tuple[_Settings, NeighborSampler]] = WeakKeyDictionary()


def install() -> None:
    """Replaces methods of DGL's samplers and loaders. Idempotent; see :func:`uninstall`.

    Graphs without a store are sampled by DGL.
    """
    if not _patches:
        loading = dgl.dataloading
        _patches.replace(loading.NeighborSampler, "sample_blocks", _neighbor_blocks)
        _patches.replace(loading.LaborSampler, "sample_blocks", _labor_blocks)
        _patches.replace(loading.DataLoader, "__init__", _init_loader)
        _patches.replace(loading.DataLoader, "__iter__", _iterate)
        _patches.replace(loading.SAINTSampler, "sample", subgraph_samplers.sample_saint)
        _patches.replace(loading.ClusterGCNSampler, "__init__", subgraph_samplers.init_cluster)
        _patches.replace(
            dgl.dataloading.cluster_gcn, "metis_partition_assignment", subgraph_samplers.partition
        )
        for module in (dgl.sampling, dgl.sampling.pinsage):
            _patches.replace(module, "random_walk", walks.random_walk)
        _patches.replace(dgl.sampling, "node2vec_random_walk", walks.node2vec_walk)
        _patches.replace(dgl.sampling, "global_uniform_negative_sampling", walks.global_uniform)


def uninstall() -> None:
    """Restores DGL's own methods."""
    _patches.undo()


def _neighbor_blocks(
    original: Any, sampler: Any, g: Any, seed_nodes: Any, exclude_eids: Any = None
) -> tuple[Any, Any, list[DGLBlock]]:
    weights = _weight_names(g, sampler.prob)
    if find_store(g) is None or sampler.edge_dir != "in" or weights is None:
        _check_seeds(g, seed_nodes)
        result: tuple[Any, Any, list[DGLBlock]] = original(sampler, g, seed_nodes, exclude_eids)
        return result
    core = _core(sampler, g, weights, replace=sampler.replace)
    return _sample(core, sampler, g, seed_nodes, exclude_eids)


def _labor_blocks(
    original: Any, sampler: Any, g: Any, seed_nodes: Any, exclude_eids: Any = None
) -> tuple[Any, Any, list[DGLBlock]]:
    unsupported = _unsupported_labor(sampler)
    if unsupported and isinstance(g, StoreGraph):
        raise NotImplementedError(
            f"a StoreGraph does not implement LaborSampler({', '.join(unsupported)}); "
            "peergraph_dgl.share(g) returns a DGLGraph that does"
        )
    if unsupported or find_store(g) is None:
        _check_seeds(g, seed_nodes)
        result: tuple[Any, Any, list[DGLBlock]] = original(sampler, g, seed_nodes, exclude_eids)
        return result
    return _sample(_labor_core(sampler, g), sampler, g, seed_nodes, exclude_eids)


def core_of(sampler: Any, g: Any) -> NeighborSampler:
    """Returns the core's sampler that draws the blocks of a sampler of DGL; the same one until
    settings of the sampler change.

    Args:
        sampler: a sampler of blocks.
        g: a shared graph.

    Raises:
        NotImplementedError: naming the sampler or an option that the core does not implement.
    """
    kind, loading = type(sampler), dgl.dataloading
    weights: dict[EdgeType, str] | None = {}
    if kind is loading.LaborSampler:
        refused = _unsupported_labor(sampler)
    elif kind in (loading.NeighborSampler, loading.MultiLayerFullNeighborSampler):
        weights = _weight_names(g, sampler.prob)
        refused = _differing({"edge_dir": (sampler.edge_dir, "in")})
        if weights is None:
            refused.append(f"prob={sampler.prob!r}, which is no shared column of numbers or a mask")
    else:
        refused = ["neither a NeighborSampler nor a LaborSampler"]
    if refused or weights is None:
        raise NotImplementedError(
            f"{kind.__name__} ({', '.join(refused)}) is not supported by capture"
        )
    if kind is loading.LaborSampler:
        return _labor_core(sampler, g)
    return _core(sampler, g, weights, replace=sampler.replace)


def _labor_core(sampler: Any, g: Any) -> NeighborSampler:
    return _core(sampler, g, {}, labor=True, layer_dependency=bool(sampler.layer_dependency))


def _unsupported_labor(sampler: Any) -> list[str]:
    """Returns the arguments of a LABOR sampler that the core does not implement, as text.

    They are importance sampling, which edge weights imply, and dependency between batches.
    """
    options = {
        "edge_dir": (sampler.edge_dir, "in"),
        "prob": (sampler.prob, None),
        "importance_sampling": (int(sampler.importance_sampling), 0),
        "batch_dependency": (int(sampler.cnt[1]), 1),
    }
    return _differing(options)


def _differing(options: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Returns the options whose value is not the plain one, as text."""
    return [f"{name}={value!r}" for name, (value, plain) in options.items() if value != plain]


def _sample(
    core: NeighborSampler,
    sampler: Any,
    g: Any,
    seed_nodes: Any,
    exclude_eids: Any,
) -> tuple[Any, Any, list[DGLBlock]]:
    sample = core.sample(ids_by_type(g, seed_nodes), next_seed())
    if exclude_eids is not None:
        sample = exclude_edges(sample, edge_ids_by_type(g, exclude_eids))
    blocks = to_blocks(sample, g)
    if sampler.output_device is not None:
        blocks = [block.to(sampler.output_device) for block in blocks]
    return blocks[0].srcdata[dgl.NID], seed_nodes, blocks


def _core(
    sampler: Any,
    g: Any,
    weights: dict[EdgeType, str],
    *,
    replace: bool = False,
    labor: bool = False,
    layer_dependency: bool = False,
) -> NeighborSampler:
    store = find_store(g)
    assert store is not None
    settings = _Settings(
        store,
        tuple(_fanouts(g, sampler.fanouts).items()),
        tuple(weights.items()),
        bool(replace),
        labor,
        layer_dependency,
        g.idtype,
    )
    entry = _samplers.get(sampler)
    if entry is None or entry[0] != settings:
        core = NeighborSampler(
            settings.store,
            dict(settings.fanouts),
            frontier="all",
            replace=settings.replace,
            weights=dict(settings.weights) or None,
            skip_zero_weights=bool(settings.weights),
            labor=settings.labor,
            layer_dependency=settings.layer_dependency,
            index_dtype=settings.idtype,
        )
        _samplers[sampler] = entry = (settings, core)
    return entry[1]


def _fanouts(g: Any, fanouts: Any) -> Fanouts:
    """Converts fanouts to lists by relation in the order of hops; DGL's lists begin with the input
    layer.
    """
    by_type: dict[EdgeType, list[int]] = {edge_type: [] for edge_type in g.canonical_etypes}
    for fanout in reversed(list(fanouts)):
        if not isinstance(fanout, Mapping):
            fanout = dict.fromkeys(by_type, fanout)
        named = {g.to_canonical_etype(key): int(count) for key, count in fanout.items()}
        for edge_type, counts in by_type.items():
            if edge_type not in named:
                raise dgl.DGLError(f"fanouts: no entry for relation {edge_type}")
            counts.append(named[edge_type])
    return {edge_type: tuple(counts) for edge_type, counts in by_type.items()}


def _weight_names(g: Any, name: str | None) -> dict[EdgeType, str] | None:
    """Edge tables with the weights or the mask `name`, by relation; None if the store has other
    values.
    """
    store = find_store(g)
    if name is None or store is None:
        return {}
    names_by_relation = {}
    for edge_type, frame in zip(g.canonical_etypes, g._edge_frames, strict=True):
        column = frame_columns(frame).get(name)
        if column is None:
            continue
        # This rank may have assigned another column.
        if not isinstance(column, StoreColumn) or column.table is None:
            return None
        table = store.edge_table(name, edge_type)
        if table.dtype not in _WEIGHT_DTYPES or tuple(table.shape[1:]) not in ((), (1,)):
            return None
        names_by_relation[edge_type] = name
    return names_by_relation


def ids_by_type(g: Any, seeds: Any) -> dict[str, Tensor]:
    """Returns seeds by node type; DGL's are a tensor where the graph has one."""
    if not isinstance(seeds, Mapping):
        if len(g.ntypes) != 1:
            raise dgl.DGLError("seed nodes must be a dict by node type, the graph has several")
        seeds = {g.ntypes[0]: seeds}
    return {ntype: materialize(torch.as_tensor(ids)) for ntype, ids in seeds.items()}


def _check_seeds(g: Any, seeds: Any) -> None:
    """Raises IndexError for invalid seeds of a shared graph, which DGL does not check."""
    if find_store(g) is None:
        return
    for node_type, ids in ids_by_type(g, seeds).items():
        count = g.num_nodes(node_type)
        bad = ((ids < 0) | (ids >= count)).nonzero().view(-1)
        if bad.numel():
            index = int(bad[0])
            raise IndexError(
                f"seeds[{index}] = {ids[index]} is out of range for {count} nodes of type "
                f"{node_type!r}"
            )


def edge_ids_by_type(g: Any, edge_ids: Any) -> dict[EdgeType, Tensor]:
    """Returns ids of edges by relation; DGL's are a tensor where the graph has one."""
    if not isinstance(edge_ids, Mapping):
        if len(g.canonical_etypes) != 1:
            raise dgl.DGLError("edge ids must be a dict by edge type, the graph has several")
        edge_ids = {g.canonical_etypes[0]: edge_ids}
    return {
        g.to_canonical_etype(key): materialize(torch.as_tensor(ids))
        for key, ids in edge_ids.items()
    }


def _init_loader(original: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    """DataLoader's constructor for a shared graph: no pinned graph, no workers for GPU stores."""
    arguments = inspect.signature(original).bind(loader, *args, **kwargs)
    arguments.apply_defaults()
    settings: dict[str, Any] = arguments.arguments
    store = find_store(settings["graph"])
    others: dict[str, Any] = settings.get("kwargs", {})
    if store is None or isinstance(others.get("collate_fn"), CollateWrapper):
        original(loader, *args, **kwargs)
        return
    if settings["use_uva"]:
        _warn_ignored("use_uva", "GPUs always read the store")
        settings["use_uva"] = False
        if settings["device"] is None:
            settings["device"] = torch.cuda.current_device()
    if settings["gpu_cache"]:
        _warn_ignored("gpu_cache", "the plan of the store places rows on the GPU")
        settings["gpu_cache"] = None
    if isinstance(settings["graph_sampler"], dgl.dataloading.SAINTSampler):
        subgraph_samplers.prepare_saint(settings["graph_sampler"], store)
    of_edges = isinstance(settings["graph_sampler"], dgl.dataloading.EdgePredictionSampler)
    count = settings["graph"].num_edges if of_edges else settings["graph"].num_nodes
    settings["indices"] = _ids_on_cpu(settings["indices"], count)
    if torch.device(store.device).type != "cpu":
        for name in ("pin_prefetcher", "use_alternate_streams", "use_prefetch_thread"):
            if settings[name]:
                _warn_ignored(name, "batches of a GPU store are made on the GPU")
            settings[name] = False
        if others.get("num_workers", 0):
            _warn_ignored("num_workers", "batches of a GPU store are made in this process")
            others = {k: v for k, v in others.items() if k not in WORKER_OPTIONS}
    elif is_split(store):
        # Rows of other machines come in the thread that trains.
        if settings["use_prefetch_thread"]:
            _warn_ignored("use_prefetch_thread", "its rows are split over machines")
        settings["use_prefetch_thread"] = False
    settings.pop("kwargs", None)
    settings.pop("self", None)
    original(loader, **settings, **others)


def _iterate(original: Any, loader: Any) -> Any:
    return iterate(loader, original(loader))


def _ids_on_cpu(indices: Any, count: Callable[..., int], *of_type: Any) -> Any:
    """Ids on the CPU; of masks, also NumPy's, pandas' and lists, the ids that they select.

    Args:
        indices: ids or a mask, or a dict of them by type.
        count: of a graph, returns the number of nodes or edges of a type.
        of_type: their type, in a graph with types.
    """
    if isinstance(indices, Mapping):
        return {name: _ids_on_cpu(some, count, name) for name, some in indices.items()}
    if not isinstance(indices, Tensor):
        if not isinstance(indices, (list, tuple)) and not hasattr(indices, "__array__"):
            return indices
        values = np.asarray(indices)
        if values.dtype != np.bool_:
            if values.dtype.kind in "iu" and any(isinstance(i, (bool, np.bool_)) for i in indices):
                raise TypeError("indices must be ids or a mask, got a list of both")
            return indices
        indices = torch.from_numpy(values)
    if indices.dtype != torch.bool:
        return indices.cpu()
    if indices.shape != (count(*of_type),):
        raise ValueError(
            f"indices: a mask must have one element for each of {count(*of_type)} nodes or edges, "
            f"has shape {tuple(indices.shape)}"
        )
    return indices.nonzero().flatten().cpu()


def _warn_ignored(argument: str, why: str) -> None:
    warnings.warn(f"{argument} has no effect on a shared graph: {why}", stacklevel=3)
