"""What layers and sums run over: a whole graph, one with communities, and a mini-batch."""

from __future__ import annotations

from dataclasses import replace

import torch
from harness.ranks import Session
from systems.systems import PeergraphSystem, build_store, seed_sets
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from inputs.arrays import random_ids
from inputs.graphs import GraphSpec, make_csc
from peergraph.aggregate import Csc, reorder
from peergraph.sampling import Sample
from peergraph.store import EDGE
from peergraph_pyg.loader import batch_csc


class Graph:
    """What layers run over: a list of edges, and offsets of the same edges by destination."""

    def __init__(
        self, name: str, indptr: Tensor, edge_index: Tensor, sample: Sample | None
    ) -> None:
        self.name = name
        self.indptr = indptr
        self.edge_index = edge_index
        self.sample = sample
        self.num_nodes = indptr.numel() - 1

    def for_peergraph(self) -> Tensor:
        """The list of edges; of a mini-batch a new one, as its loader hands it over."""
        if self.sample is None:
            return self.edge_index
        edge_index = self.edge_index.view(2, -1)
        batch_csc.cache_csc(self.sample)
        batch_csc.attach([(edge_index, batch_csc.structure_of(self.sample.row[EDGE]))])
        return edge_index

    def matrix(self, layer: str) -> Tensor:
        """Destinations by sources; GCN's with the weights and self loops of its normalisation."""
        indptr, edge_index, values = self.indptr, self.edge_index, None
        if layer == "GCN":
            edge_index, values = gcn_norm(edge_index, None, self.num_nodes)
            # PyG appends the self loops.
            destination, order = edge_index[1].sort(stable=True)
            edge_index, values = edge_index[:, order], values[order]
            nodes = torch.arange(self.num_nodes + 1, device=destination.device)
            indptr = torch.searchsorted(destination, nodes).to(indptr.dtype)
        if values is None:
            values = torch.ones(edge_index.shape[1], device=edge_index.device)
        size = (self.num_nodes, self.num_nodes)
        return torch.sparse_csr_tensor(
            indptr, edge_index[0].int(), values, size=size, check_invariants=False
        )


def symmetric_graph(spec: GraphSpec, device: torch.device, by_hotness: bool) -> Csc:
    """Half the edges of a preset and their reverses; nodes numbered by degree on request."""
    half = replace(spec, num_edges=spec.num_edges // 2)
    indptr, source = make_csc(half, device)
    degrees = indptr.diff()
    nodes = torch.arange(spec.num_nodes, dtype=torch.int32, device=device)
    destination = nodes.repeat_interleave(degrees)
    degrees += torch.bincount(source, minlength=spec.num_nodes)
    if by_hotness:
        order = torch.sort(degrees, descending=True).indices
        rank = torch.empty_like(nodes)
        rank[order] = nodes
        source, destination, degrees = rank[source], rank[destination], degrees[order]
    order = torch.sort(torch.cat([destination, source])).indices
    both = torch.cat([source, destination])[order]
    indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    return Csc(indptr.int(), both, spec.num_nodes)


def community_graph(spec: GraphSpec, size: int, device: torch.device) -> Csc:
    """As many nodes and edges, all nodes of the same degree, nine of ten edges within communities
    of `size` nodes; nodes are numbered at random.
    """
    count, degree = spec.num_nodes, spec.num_edges // spec.num_nodes
    edges = count * degree
    target = torch.arange(count, device=device).repeat_interleave(degree)
    near = target // size * size + random_ids(11, edges, size, device)
    near.clamp_(max=count - 1)
    is_near = random_ids(12, edges, 10, device, torch.int32) > 0
    source = torch.where(is_near, near, random_ids(13, edges, count, device))
    del near, is_near
    generator = torch.Generator(device).manual_seed(5)
    place = torch.randperm(count, generator=generator, device=device).int()
    source, target = place[source], place[target]
    target, order = torch.sort(target)
    indptr = torch.arange(0, edges + 1, degree, dtype=torch.int32, device=device)
    return Csc(indptr, source[order], count)


def graph_of(name: str, csc: Csc) -> Graph:
    nodes = torch.arange(csc.num_destinations, device=csc.device)
    destination = nodes.repeat_interleave(csc.in_degrees(), output_size=csc.num_edges)
    edge_index = torch.stack([csc.indices.long(), destination])
    return Graph(name, csc.indptr, edge_index, None)


def whole_graph(session: Session) -> Graph:
    return graph_of("graph", symmetric_graph(session.args.graph, session.device, by_hotness=False))


def communities(session: Session) -> Graph:
    args = session.args
    return graph_of("communities", community_graph(args.graph, args.community, session.device))


def renumbered(session: Session) -> Graph:
    args = session.args
    csc, _ = reorder(community_graph(args.graph, args.community, session.device))
    return graph_of("renumbered", csc)


def mini_batch(session: Session) -> Graph:
    """A batch with PyG's semantics: its edges are grouped by destination."""
    args = session.args
    spec, args.graph = args.graph, args.blocks
    try:
        store = build_store(session, "replicated")
        system = PeergraphSystem(store, "replicated", "pyg")
        fanouts, batch = args.fanouts, args.batch
        system.use_fanouts(fanouts)
        (seeds, *_) = seed_sets(session, args.blocks, batch, system.id_dtype)
        sample = system.sample(seeds, 0)
        store.close()
    finally:
        args.graph = spec
    edge_index = torch.stack([sample.row[EDGE], sample.col[EDGE]])
    nodes = torch.arange(sum(sum(n) for n in sample.num_sampled_nodes.values()) + 1)
    indptr = torch.searchsorted(edge_index[1].contiguous(), nodes.to(session.device)).int()
    return Graph("batch", indptr, edge_index, sample)


PARTS = {
    "graph": whole_graph,
    "batch": mini_batch,
    "communities": communities,
    "renumbered": renumbered,
}
