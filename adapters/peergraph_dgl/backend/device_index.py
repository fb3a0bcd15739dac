"""DGL's graph index on devices that DGL's C library was not built for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import dgl.backend as F
import dgl.heterograph_index as dgl_index
import torch
from dgl.graph_index import from_coo
from dgl.heterograph_index import HeteroGraphIndex
from dgl.utils import toindex
from torch import Tensor

from .edge_list import EdgeList, edge_list_of
from .graph_index import FORMATS, GraphIndex, unit_metagraph


class DeviceIndex(GraphIndex[EdgeList]):
    """A graph's structure as torch tensors, with the methods of DGL's HeteroGraphIndex.

    DGL's graph classes use it unchanged. Most methods run torch operations on the device. Methods
    that need DGL's C library run on a copy on the CPU, and their results are copied to the device.
    A function of the C library that gets this index raises a TypeError that names this class; move
    the graph by ``.to("cpu")`` for it.

    Args:
        metagraph: DGL's graph of node types (nodes) and relations (edges).
        num_nodes: number of nodes of each type.
        edge_lists: edges of each relation, all on one device and of one dtype.
    """

    def __init__(
        self, metagraph: Any, num_nodes: Sequence[int], edge_lists: Sequence[EdgeList]
    ) -> None:
        super().__init__(metagraph, num_nodes, edge_lists)
        self._cpu_index: Any = None

    @classmethod
    def copy_of(cls, index: Any, device: torch.device) -> DeviceIndex:
        """Copies a DeviceIndex or DGL's own index to `device`."""
        dtype = getattr(torch, index.dtype)
        if is_device_index(index):
            edge_lists = [edges.to(device, dtype) for edges in index.edge_lists]
        else:
            edge_lists = [
                edge_list_of(index, etype).to(device, dtype)
                for etype in range(index.number_of_etypes())
            ]
        num_nodes = [index.num_nodes(ntype) for ntype in range(index.number_of_ntypes())]
        return cls(index.metagraph, num_nodes, edge_lists)

    @classmethod
    def unit(cls, num_ntypes: int, edges: EdgeList) -> DeviceIndex:
        """Makes the index of one relation, within a node type or between two."""
        ends = (edges.num_src, edges.num_dst)
        return cls(unit_metagraph(num_ntypes), ends[:num_ntypes], [edges])

    @classmethod
    def join(cls, metagraph: Any, units: Sequence[Any], num_nodes: Any) -> DeviceIndex:
        """Joins one index for each relation; `num_nodes` is None or DGL's array of counts."""
        ends = [metagraph.find_edge(etype) for etype in range(len(units))]
        counts = [0] * metagraph.num_nodes()
        for (source, destination), unit in zip(ends, units, strict=True):
            counts[source] = unit.edge_lists[0].num_src
            counts[destination] = unit.edge_lists[0].num_dst
        if num_nodes is not None:
            counts = num_nodes.tonumpy().tolist()
        return cls(metagraph, counts, [unit.edge_lists[0] for unit in units])

    def __reduce__(self) -> Any:
        return _unpickle, (self.metagraph, self._num_nodes, self.edge_lists)

    incidence_matrix = HeteroGraphIndex.incidence_matrix
    adjacency_matrix_scipy = HeteroGraphIndex.adjacency_matrix_scipy

    # Edges

    def edges(self, etype: int, order: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if order not in (None, "srcdst", "eid"):
            raise ValueError(f"order: expected None, 'srcdst' or 'eid', got {order!r}")
        edges = self.edge_lists[etype]
        src, dst = edges.src, edges.dst
        ids = torch.arange(src.numel(), dtype=src.dtype, device=src.device)
        if order == "srcdst":
            dst_order = torch.argsort(dst, stable=True)
            ids = dst_order[torch.argsort(src[dst_order], stable=True)].to(src.dtype)
            return src[ids.long()], dst[ids.long()], ids
        return src.clone(), dst.clone(), ids  # writes to them do not change the graph

    def find_edges(self, etype: int, eid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        edges, index = self.edge_lists[etype], eid.long()
        return edges.src[index], edges.dst[index], eid

    def in_edges(self, etype: int, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.edge_lists[etype].in_edges(v)

    def out_edges(self, etype: int, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dst, src, ids = self.edge_lists[etype].reverse().in_edges(v)
        return src, dst, ids

    def successors(self, etype: int, v: int) -> Tensor:
        return self.out_edges(etype, torch.tensor([v], device=self.device))[1]

    def predecessors(self, etype: int, v: int) -> Tensor:
        return self.in_edges(etype, torch.tensor([v], device=self.device))[0]

    def adjacency_matrix_tensors(self, etype: int, transpose: bool, fmt: str) -> tuple[Any, ...]:
        edges = self.edge_lists[etype]
        if transpose:
            edges = edges.reverse()
        shape = (edges.num_src, edges.num_dst)
        if fmt == "coo":
            return (*shape, edges.src, edges.dst)
        if fmt == "csr":
            return (*shape, *edges.reverse().by_destination())
        raise ValueError(f"fmt: expected 'coo' or 'csr', got {fmt!r}")

    def adjacency_matrix(self, etype: int, transpose: bool, ctx: Any) -> tuple[Tensor, None]:
        rows, columns, row, column = self.adjacency_matrix_tensors(etype, transpose, "coo")
        indices = torch.stack([row, column]).long().to(ctx)
        ones = torch.ones(indices.shape[1], device=ctx)
        return torch.sparse_coo_tensor(indices, ones, (rows, columns)), None

    # Derived graphs

    def get_relation_graph(self, etype: int) -> DeviceIndex:
        edges = self.edge_lists[etype]
        source, destination = self.metagraph.find_edge(etype)
        return DeviceIndex.unit(1 if source == destination else 2, edges)

    def reverse(self) -> DeviceIndex:
        sources, destinations = self._ends()
        metagraph = from_coo(len(self._num_nodes), destinations, sources, True)
        return DeviceIndex(metagraph, self._num_nodes, [r.reverse() for r in self.edge_lists])

    def asbits(self, bits: int) -> DeviceIndex:
        dtype = {32: torch.int32, 64: torch.int64}[bits]
        edge_lists = [edges.to(self.device, dtype) for edges in self.edge_lists]
        return DeviceIndex(self.metagraph, self._num_nodes, edge_lists)

    def copy_to(self, ctx: Any) -> Any:
        device = F.to_backend_ctx(ctx)
        return self.to_dgl_index() if device.type == "cpu" else DeviceIndex.copy_of(self, device)

    def record_stream(self, stream: torch.cuda.Stream) -> DeviceIndex:
        for edges in self.edge_lists:
            for tensor in edges.tensors:
                tensor.record_stream(stream)
        return self

    # Methods that run DGL's C library on a copy on the CPU

    def to_dgl_index(self) -> Any:
        """DGL's own index of the same graph on the CPU, cached."""
        if self._cpu_index is None:
            units = []
            for etype, edges in enumerate(self.edge_lists):
                source, destination = self.metagraph.find_edge(etype)
                ends = (1 if source == destination else 2, edges.num_src, edges.num_dst)
                src, dst = edges.src.cpu(), edges.dst.cpu()
                units.append(dgl_index.create_unitgraph_from_coo(*ends, src, dst, list(FORMATS)))
            self._cpu_index = dgl_index.create_heterograph_from_relations(
                self.metagraph, units, toindex(self._num_nodes, "int64")
            )
        return self._cpu_index

    def _on_cpu(self, name: str, etype: int, *tensors: Tensor) -> Any:
        result = getattr(self.to_dgl_index(), name)(etype, *(tensor.cpu() for tensor in tensors))
        if isinstance(result, Tensor):
            return result.to(self.device)
        return tuple(tensor.to(self.device) for tensor in result)

    def has_edges_between(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._on_cpu("has_edges_between", etype, u, v)

    def edge_ids_all(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._on_cpu("edge_ids_all", etype, u, v)

    def edge_ids_one(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._on_cpu("edge_ids_one", etype, u, v)

    def is_multigraph(self) -> bool:
        return bool(self.to_dgl_index().is_multigraph())

    def node_subgraph(self, induced_nodes: Sequence[Tensor]) -> SubgraphIndex:
        part = self.to_dgl_index().node_subgraph([ids.cpu() for ids in induced_nodes])
        return self._subgraph(part, part.induced_nodes)

    def edge_subgraph(self, induced_edges: Sequence[Tensor], preserve_nodes: bool) -> SubgraphIndex:
        edges = [ids.cpu() for ids in induced_edges]
        part = self.to_dgl_index().edge_subgraph(edges, preserve_nodes)
        # With preserve_nodes, DGL leaves the arrays of induced nodes undefined.
        nodes = map(torch.arange, self._num_nodes) if preserve_nodes else part.induced_nodes
        return self._subgraph(part, nodes)

    def _subgraph(self, part: Any, nodes: Iterable[Tensor]) -> SubgraphIndex:
        return SubgraphIndex(
            DeviceIndex.copy_of(part.graph, self.device),
            [ids.to(self.device) for ids in nodes],
            [ids.to(self.device) for ids in part.induced_edges],
        )


class SubgraphIndex:
    """The counterpart of DGL's HeteroSubgraphIndex, made of tensors."""

    def __init__(
        self, graph: DeviceIndex, induced_nodes: list[Tensor], induced_edges: list[Tensor]
    ) -> None:
        self.graph = graph
        self.induced_nodes = induced_nodes
        self.induced_edges = induced_edges


def is_device_index(index: Any) -> bool:
    """Returns whether an index is a :class:`DeviceIndex`; `isinstance` is misled by its
    ``__class__``.
    """
    return type(index) is DeviceIndex


def _unpickle(metagraph: Any, num_nodes: list[int], edge_lists: list[EdgeList]) -> DeviceIndex:
    return DeviceIndex(metagraph, num_nodes, edge_lists)
