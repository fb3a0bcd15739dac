"""DGL's samplers on shared graphs: all hops in one call, on the device of the store."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import dgl.dataloading
import torch
from dgl.dataloading.dataloader import CollateWrapper
from dgl.heterograph import DGLBlock
from torch import Tensor

from peergraph.sampling import NeighborSampler, Sample, exclude_edges, next_seed
from peergraph.store import EdgeType, Store

from ..backend.replacing import Replacements
from ..graph.columns import StoreColumn
from ..graph.storages import in_memory
from ..graph.store_graph import StoreGraph
from ..graph.store_of import find_store
from .blocks import blocks_of

logger = logging.getLogger("peergraph_dgl")

_replacements = Replacements()

Fanouts = dict[EdgeType, tuple[int, ...]]


class _Settings(NamedTuple):
    """What a core sampler was made for."""

    store: Store
    fanouts: tuple[tuple[EdgeType, tuple[int, ...]], ...]
    weights: tuple[tuple[EdgeType, str], ...]
    replace: bool
    labor: bool
    layer_dependency: bool
    idtype: torch.dtype


_samplers: WeakKeyDictionary[Any, tuple[_Settings, NeighborSampler]] = WeakKeyDictionary()


def install() -> None:
    """Has DGL's samplers and loaders treat shared graphs so; :func:`uninstall` takes it back.

    Other graphs are sampled as ever. Does nothing the second time.
    """
    if not _replacements:
        loading = dgl.dataloading
        _replacements.replace(loading.NeighborSampler, "sample_blocks", _neighbor_blocks)
        _replacements.replace(loading.LaborSampler, "sample_blocks", _labor_blocks)
        _replacements.replace(loading.DataLoader, "__init__", _init_loader)


def uninstall() -> None:
    """Puts DGL's own methods back."""
    _replacements.undo()


def _neighbor_blocks(
    dgls: Any, sampler: Any, g: Any, seed_nodes: Any, exclude_eids: Any = None
) -> tuple[Any, Any, list[DGLBlock]]:
    weights = _weights(g, sampler.prob)
    if find_store(g) is None or sampler.edge_dir != "in" or weights is None:
        _check_seeds(g, seed_nodes)
        result: tuple[Any, Any, list[DGLBlock]] = dgls(sampler, g, seed_nodes, exclude_eids)
        return result
    return _sample(sampler, g, seed_nodes, exclude_eids, weights, replace=sampler.replace)


def _labor_blocks(
    dgls: Any, sampler: Any, g: Any, seed_nodes: Any, exclude_eids: Any = None
) -> tuple[Any, Any, list[DGLBlock]]:
    beyond = _beyond_the_core(sampler)
    if beyond and isinstance(g, StoreGraph):
        raise NotImplementedError(
            f"LaborSampler({', '.join(beyond)}) is not served by a graph without a DGL graph "
            "inside; peergraph_dgl.share(g) gives a DGLGraph that has it"
        )
    if beyond or find_store(g) is None:
        _check_seeds(g, seed_nodes)
        result: tuple[Any, Any, list[DGLBlock]] = dgls(sampler, g, seed_nodes, exclude_eids)
        return result
    dependent = bool(sampler.layer_dependency)
    return _sample(sampler, g, seed_nodes, exclude_eids, {}, labor=True, layer_dependency=dependent)


def _beyond_the_core(sampler: Any) -> list[str]:
    """What a LABOR sampler asks for that the core has not: importance sampling, which weights
    imply, and dependency of batches on each other."""
    given = {
        "edge_dir": (sampler.edge_dir, "in"),
        "prob": (sampler.prob, None),
        "importance_sampling": (int(sampler.importance_sampling), 0),
        "batch_dependency": (int(sampler.cnt[1]), 1),
    }
    return [f"{name}={value!r}" for name, (value, plain) in given.items() if value != plain]


def _sample(
    sampler: Any,
    g: Any,
    seed_nodes: Any,
    exclude_eids: Any,
    weights: dict[EdgeType, str],
    *,
    replace: bool = False,
    labor: bool = False,
    layer_dependency: bool = False,
) -> tuple[Any, Any, list[DGLBlock]]:
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
    core = _core(sampler, settings)
    sample = core.sample(_by_type(g, seed_nodes), next_seed())
    unwanted = _unwanted(g, sample, exclude_eids, weights, store)
    if unwanted:
        sample = exclude_edges(sample, unwanted)
    blocks = blocks_of(sample, g)
    if sampler.output_device is not None:
        blocks = [block.to(sampler.output_device) for block in blocks]
    return blocks[0].srcdata[dgl.NID], seed_nodes, blocks


def _core(sampler: Any, settings: _Settings) -> NeighborSampler:
    known = _samplers.get(sampler)
    if known is None or known[0] != settings:
        made = NeighborSampler(
            settings.store,
            dict(settings.fanouts),
            frontier="all",
            replace=settings.replace,
            weights=dict(settings.weights) or None,
            labor=settings.labor,
            layer_dependency=settings.layer_dependency,
            index_dtype=settings.idtype,
        )
        _samplers[sampler] = known = (settings, made)
    return known[1]


def _fanouts(g: Any, fanouts: Any) -> Fanouts:
    """By relation, from the seeds on; DGL's lists begin with the input layer."""
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


def _weights(g: Any, name: str | None) -> dict[EdgeType, str] | None:
    """Tables of the store to draw by; None if `name` says something else."""
    store = find_store(g)
    if name is None or store is None:
        return {}
    found = {}
    for edge_type, frame in zip(g.canonical_etypes, g._edge_frames, strict=True):
        column = frame._columns.get(name)
        if column is None:
            continue
        # The user may have assigned another column on this rank.
        if not isinstance(column, StoreColumn) or column.table is None:
            return None
        table = store.edge_table(name, edge_type)
        if table.dtype not in (torch.float32, torch.float64) or table.shape[1:].count(1) != len(
            table.shape[1:]
        ):
            return None
        found[edge_type] = name
    return found


def _by_type(g: Any, seeds: Any) -> dict[str, Tensor]:
    if not isinstance(seeds, Mapping):
        if len(g.ntypes) != 1:
            raise dgl.DGLError("seed nodes must be a dict by node type, the graph has several")
        seeds = {g.ntypes[0]: seeds}
    return {ntype: in_memory(torch.as_tensor(ids)) for ntype, ids in seeds.items()}


def _check_seeds(g: Any, seeds: Any) -> None:
    """Raises IndexError for seeds of a shared graph that DGL's C library would look for outside of
    its memory."""
    if find_store(g) is None:
        return
    for node_type, ids in _by_type(g, seeds).items():
        count = g.num_nodes(node_type)
        bad = ((ids < 0) | (ids >= count)).nonzero().view(-1)
        if bad.numel():
            at = int(bad[0])
            raise IndexError(
                f"seeds[{at}] = {ids[at]} is out of range for {count} nodes of type {node_type!r}"
            )


def _unwanted(
    g: Any, sample: Sample, exclude_eids: Any, weights: dict[EdgeType, str], store: Store
) -> dict[EdgeType, Tensor]:
    """Ids of the edges that must not be in the sample, by relation."""
    parts: dict[EdgeType, list[Tensor]] = {}
    if exclude_eids is not None:
        if not isinstance(exclude_eids, Mapping):
            exclude_eids = {g.canonical_etypes[0]: exclude_eids}
        for key, ids in exclude_eids.items():
            parts.setdefault(g.to_canonical_etype(key), []).append(ids)
    for edge_type, ids in weightless(sample, weights, store).items():
        parts.setdefault(edge_type, []).append(ids)
    device = store.device
    return {
        edge_type: torch.cat([ids.to(device, torch.int64) for ids in of_type])
        for edge_type, of_type in parts.items()
    }


def weightless(
    sample: Sample, weights: Mapping[EdgeType, str], store: Store
) -> dict[EdgeType, Tensor]:
    """Ids of sampled edges that weigh 0: the core takes them where it finds nothing else.

    Args:
        sample: with edge ids.
        weights: names of edge tables by relation.
    """
    assert sample.edge_ids is not None
    found = {}
    for edge_type, name in weights.items():
        ids = sample.edge_ids[edge_type]
        found[edge_type] = ids[store.edge_table(name, edge_type).gather(ids).reshape(-1) == 0]
    return found


def _init_loader(dgls: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    """DataLoader's constructor; a shared graph is not pinned, nor its GPU store forked."""
    given = inspect.signature(dgls).bind(loader, *args, **kwargs)
    given.apply_defaults()
    settings: dict[str, Any] = given.arguments
    store = find_store(settings["graph"])
    others: dict[str, Any] = settings.get("kwargs", {})
    if store is None or isinstance(others.get("collate_fn"), CollateWrapper):
        dgls(loader, *args, **kwargs)
        return
    if settings["use_uva"]:
        _say("use_uva", "the GPUs read the store anyway")
        settings["use_uva"] = False
        if settings["device"] is None:
            settings["device"] = torch.cuda.current_device()
    if settings["gpu_cache"]:
        _say("gpu_cache", "the plan of the store says which rows lie on the GPU")
        settings["gpu_cache"] = None
    settings["indices"] = _on_cpu(settings["indices"])
    if torch.device(store.device).type != "cpu":
        for name in ("pin_prefetcher", "use_alternate_streams", "use_prefetch_thread"):
            if settings[name]:
                _say(name, "batches of a GPU store are made on the GPU")
            settings[name] = False
        if others.get("num_workers", 0):
            _say("num_workers", "batches of a GPU store are made in this process")
            others = {k: v for k, v in others.items() if k not in _OF_WORKERS}
    settings.pop("kwargs", None)
    settings.pop("self", None)
    dgls(loader, **settings, **others)


_OF_WORKERS = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
)


def _on_cpu(indices: Any) -> Any:
    if isinstance(indices, Tensor):
        return indices.cpu()
    if isinstance(indices, Mapping):
        return {k: v.cpu() if isinstance(v, Tensor) else v for k, v in indices.items()}
    return indices


@functools.cache
def _say(argument: str, why: str) -> None:
    logger.warning("%s has no effect on a shared graph: %s", argument, why)
