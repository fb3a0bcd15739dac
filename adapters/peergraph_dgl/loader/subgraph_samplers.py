"""DGL's samplers of GraphSAINT and Cluster-GCN on graphs over a store."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from dgl.dataloading.base import set_edge_lazy_features, set_node_lazy_features
from torch import Tensor

from peergraph.fullgraph import node_parts
from peergraph.memory import collective_call, host_rows
from peergraph.sampling import SaintSampler, next_seed
from peergraph.store import Store

from ..graph.store_graph import StoreGraph
from ..graph.store_of import find_store

_CORE = "_peergraph_saint"


def sample_saint(original: Any, sampler: Any, g: Any, indices: Any) -> Any:
    """``SAINTSampler.sample``; of a graph over a store, with nodes that Peergraph draws.

    DGL keeps a probability for each node, or for each edge, in every process.
    """
    store = find_store(g)
    if store is None or len(g.canonical_etypes) != 1 or len(g.ntypes) != 1:
        return original(sampler, g, indices)
    prepare_saint(sampler, store)
    nodes = getattr(sampler, _CORE).draw(next_seed()).to("cpu", g.idtype)
    subgraph = g.subgraph(nodes, relabel_nodes=True, output_device=sampler.output_device)
    set_node_lazy_features(subgraph, sampler.prefetch_ndata)
    set_edge_lazy_features(subgraph, sampler.prefetch_edata)
    return subgraph


def prepare_saint(sampler: Any, store: Store) -> None:
    """Makes the core's sampler of a ``SAINTSampler``, unless it has one of this store. Collective.

    ``DataLoader`` does so when it is made, before it has workers. The sampler takes it along to
    other processes.
    """
    core = getattr(sampler, _CORE, None)
    if core is not None and core.store.contents is store.contents:
        return
    mode = sampler.sampler.__name__.removesuffix("_sampler")
    roots, length = sampler.budget if mode == "walk" else (sampler.budget, 1)
    core = SaintSampler(store, mode, roots, walk_length=length, least_out_degree=1)
    setattr(sampler, _CORE, core)


def init_cluster(original: Any, sampler: Any, g: Any, k: int, *args: Any, **kwargs: Any) -> None:
    """``ClusterGCNSampler(g, k)``; of a graph over a store, rank 0 partitions or reads the file.
    Collective then.

    The order of nodes is in host memory once on the machine. Of a ``StoreGraph``,
    :func:`peergraph.fullgraph.node_parts` makes the parts.
    """
    store = find_store(g)
    if store is None:
        original(sampler, g, k, *args, **kwargs)
        return
    if store.group is None:
        raise RuntimeError("only the ranks that share a graph can make a ClusterGCNSampler of it")
    group = store.group

    def initialise() -> None:
        if group.rank == 0:
            original(sampler, g, k, *args, **kwargs)

    collective_call(group, initialise)

    def fill(order: Tensor) -> None:
        order.copy_(torch.as_tensor(sampler.partition_node_ids))

    table = host_rows(group, (store.num_nodes(g.ntypes[0]),), torch.int64, fill)
    state = dict(vars(sampler)) if group.rank == 0 else None
    if state is not None:
        state.pop("partition_node_ids")
    vars(sampler).update(group.broadcast(state))
    sampler.partition_node_ids = table.as_tensor()


def partition(original: Any, g: Any, k: int, *args: Any, **kwargs: Any) -> Tensor:
    """``dgl.metis_partition_assignment``; of a ``StoreGraph``, without DGL's structure."""
    if not isinstance(g, StoreGraph):
        parts: Tensor = original(g, k, *args, **kwargs)
        return parts
    if any(args) or any(v for name, v in kwargs.items() if name.startswith("balance_")):
        raise NotImplementedError("balance_ntypes, balance_edges: not for a StoreGraph")
    if not g.is_homogeneous:
        raise dgl.DGLError("a graph of several types has no partition by METIS")
    (edge_type,) = g.canonical_etypes
    return node_parts(g.store.edge_index(edge_type), g.num_nodes(), k)
