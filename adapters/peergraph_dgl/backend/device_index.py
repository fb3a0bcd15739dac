"""DGL's graph index on devices that DGL's C library was not built for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import dgl.backend as F
import dgl.heterograph_index as dgl_index
import torch
from dgl.graph_index import from_coo
from dgl.heterograph_index import HeteroGraphIndex
from dgl.utils import to_dgl_context, toindex
from torch import Tensor

from .edge_list import Relation, relation_of

_FORMATS = ("coo", "csr", "csc")


class DeviceIndex:
    """The structure of a graph as torch tensors, with the methods of DGL's HeteroGraphIndex.

    DGL's own graph classes work on it as they are. It answers by torch operations on its device;
    what needs DGL's C library is done on a copy on the CPU, and what comes out is brought to the
    device. A function of the C library that is given the index itself raises a TypeError naming
    this class: move the graph by ``.to("cpu")`` for it.

    Args:
        metagraph: DGL's graph of node types (nodes) and relations (edges).
        num_nodes: nodes of each type.
        relations: edges of each relation, all on one device and of one dtype.
    """

    def __init__(
        self, metagraph: Any, num_nodes: Sequence[int], relations: Sequence[Relation]
    ) -> None:
        self.metagraph = metagraph
        self._num_nodes = [int(count) for count in num_nodes]
        self.relations = list(relations)
        self._host: Any = None
        self._cache: dict[Any, Any] = {}

    # DGLGraph takes nothing but a HeteroGraphIndex. To the C library, which goes by the real type,
    # this is none, so it refuses it instead of following a handle that leads nowhere.
    @property
    def __class__(self) -> Any:
        return HeteroGraphIndex

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError("the class of an index cannot be changed")

    @property
    def handle(self) -> Any:
        raise TypeError(
            f"DGL's C library cannot take a graph on {self.device}: move it by .to('cpu')"
        )

    @classmethod
    def of(cls, index: Any, device: torch.device) -> DeviceIndex:
        """A copy of any index on `device`."""
        dtype = getattr(torch, index.dtype)
        if is_device_index(index):
            relations = [relation.to(device, dtype) for relation in index.relations]
        else:
            relations = [
                relation_of(index, etype).to(device, dtype)
                for etype in range(index.number_of_etypes())
            ]
        num_nodes = [index.num_nodes(ntype) for ntype in range(index.number_of_ntypes())]
        return cls(index.metagraph, num_nodes, relations)

    @classmethod
    def unit(cls, num_ntypes: int, relation: Relation) -> DeviceIndex:
        """Of one relation, within a type or between two."""
        ends = (relation.num_src, relation.num_dst)
        return cls(metagraph_of(num_ntypes), ends[:num_ntypes], [relation])

    @classmethod
    def joined(cls, metagraph: Any, units: Sequence[Any], num_nodes: Any) -> DeviceIndex:
        """Of one index for each relation; `num_nodes` may be None or an index of DGL's."""
        ends = [metagraph.find_edge(etype) for etype in range(len(units))]
        counts = [0] * metagraph.num_nodes()
        for (source, destination), unit in zip(ends, units, strict=True):
            counts[source] = unit.relations[0].num_src
            counts[destination] = unit.relations[0].num_dst
        if num_nodes is not None:
            counts = num_nodes.tonumpy().tolist()
        return cls(metagraph, counts, [unit.relations[0] for unit in units])

    def __reduce__(self) -> Any:
        return _unpickle, (self.metagraph, self._num_nodes, self.relations)

    # What the graph is

    @property
    def device(self) -> torch.device:
        """Where the structure lies."""
        return self.relations[0].device if self.relations else torch.device("cpu")

    @property
    def ctx(self) -> Any:
        return to_dgl_context(self.device)

    @property
    def dtype(self) -> str:
        is_int = bool(self.relations) and self.relations[0].src.dtype == torch.int32
        return "int32" if is_int else "int64"

    def number_of_ntypes(self) -> int:
        return len(self._num_nodes)

    def number_of_etypes(self) -> int:
        return len(self.relations)

    def num_nodes(self, ntype: int) -> int:
        return self._num_nodes[ntype]

    def num_edges(self, etype: int) -> int:
        return self.relations[etype].num_edges

    number_of_nodes = num_nodes
    number_of_edges = num_edges
    bits_needed = HeteroGraphIndex.bits_needed
    incidence_matrix = HeteroGraphIndex.incidence_matrix
    adjacency_matrix_scipy = HeteroGraphIndex.adjacency_matrix_scipy

    def is_metagraph_unibipartite(self) -> bool:
        sources, destinations = self._ends()
        return not set(sources) & set(destinations)

    def _ends(self) -> tuple[list[int], list[int]]:
        """Source and destination types of the relations."""
        ends = [self.metagraph.find_edge(etype) for etype in range(len(self.relations))]
        return [source for source, _ in ends], [destination for _, destination in ends]

    def is_readonly(self) -> bool:
        return True

    def is_pinned(self) -> bool:
        return False

    def pin_memory_(self) -> None:
        raise NotImplementedError("pin_memory_: a graph made of torch tensors is not pinned")

    def has_nodes(self, ntype: int, vids: Tensor) -> Tensor:
        return ((vids >= 0) & (vids < self.num_nodes(ntype))).to(vids.dtype)

    # Edges

    def edges(self, etype: int, order: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if order not in (None, "srcdst", "eid"):
            raise ValueError(f"order: expected None, 'srcdst' or 'eid', got {order!r}")
        relation = self.relations[etype]
        src, dst = relation.src, relation.dst
        ids = torch.arange(src.numel(), dtype=src.dtype, device=src.device)
        if order == "srcdst":
            by_destination = torch.argsort(dst, stable=True)
            ids = by_destination[torch.argsort(src[by_destination], stable=True)].to(src.dtype)
            src, dst = src[ids.long()], dst[ids.long()]
        return src, dst, ids

    def find_edges(self, etype: int, eid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        relation, at = self.relations[etype], eid.long()
        return relation.src[at], relation.dst[at], eid

    def in_edges(self, etype: int, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.relations[etype].in_edges(v)

    def out_edges(self, etype: int, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dst, src, ids = self.relations[etype].reverse().in_edges(v)
        return src, dst, ids

    def in_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.relations[etype].in_degrees()[v.long()]

    def out_degrees(self, etype: int, v: Tensor) -> Tensor:
        return self.relations[etype].out_degrees()[v.long()]

    def successors(self, etype: int, v: int) -> Tensor:
        return self.out_edges(etype, torch.tensor([v], device=self.device))[1]

    def predecessors(self, etype: int, v: int) -> Tensor:
        return self.in_edges(etype, torch.tensor([v], device=self.device))[0]

    def adjacency_matrix_tensors(self, etype: int, transpose: bool, fmt: str) -> tuple[Any, ...]:
        relation = self.relations[etype]
        if transpose:
            relation = relation.reverse()
        shape = (relation.num_src, relation.num_dst)
        if fmt == "coo":
            return (*shape, relation.src, relation.dst)
        if fmt == "csr":
            return (*shape, *relation.reverse().by_destination())
        raise ValueError(f"fmt: expected 'coo' or 'csr', got {fmt!r}")

    def adjacency_matrix(self, etype: int, transpose: bool, ctx: Any) -> tuple[Tensor, None]:
        rows, columns, row, column = self.adjacency_matrix_tensors(etype, transpose, "coo")
        at = torch.stack([row, column]).long().to(ctx)
        ones = torch.ones(at.shape[1], device=ctx)
        return torch.sparse_coo_tensor(at, ones, (rows, columns)), None

    # Other graphs made of this one

    def get_relation_graph(self, etype: int) -> DeviceIndex:
        relation = self.relations[etype]
        source, destination = self.metagraph.find_edge(etype)
        return DeviceIndex.unit(1 if source == destination else 2, relation)

    def reverse(self) -> DeviceIndex:
        sources, destinations = self._ends()
        metagraph = from_coo(len(self._num_nodes), destinations, sources, True)
        return DeviceIndex(metagraph, self._num_nodes, [r.reverse() for r in self.relations])

    def asbits(self, bits: int) -> DeviceIndex:
        dtype = {32: torch.int32, 64: torch.int64}[bits]
        relations = [relation.to(self.device, dtype) for relation in self.relations]
        return DeviceIndex(self.metagraph, self._num_nodes, relations)

    def copy_to(self, ctx: Any) -> Any:
        device = F.to_backend_ctx(ctx)
        return self.on_host() if device.type == "cpu" else DeviceIndex.of(self, device)

    def formats(self, formats: str | Sequence[str] | None = None) -> Any:
        """Structures are made when needed, whatever is said here."""
        return {"created": list(_FORMATS), "not created": []} if formats is None else self

    def create_formats_(self) -> None:
        """Structures are made when needed."""

    def record_stream(self, stream: torch.cuda.Stream) -> DeviceIndex:
        for relation in self.relations:
            for tensor in relation.tensors:
                tensor.record_stream(stream)
        return self

    # By DGL's C library, on a copy

    def on_host(self) -> Any:
        """DGL's own index of the same graph on the CPU, made once."""
        if self._host is None:
            units = []
            for etype, relation in enumerate(self.relations):
                source, destination = self.metagraph.find_edge(etype)
                ends = (1 if source == destination else 2, relation.num_src, relation.num_dst)
                src, dst = relation.src.cpu(), relation.dst.cpu()
                units.append(dgl_index.create_unitgraph_from_coo(*ends, src, dst, list(_FORMATS)))
            self._host = dgl_index.create_heterograph_from_relations(
                self.metagraph, units, toindex(self._num_nodes, "int64")
            )
        return self._host

    def _by_host(self, name: str, etype: int, *tensors: Tensor) -> Any:
        result = getattr(self.on_host(), name)(etype, *(tensor.cpu() for tensor in tensors))
        if isinstance(result, Tensor):
            return result.to(self.device)
        return tuple(tensor.to(self.device) for tensor in result)

    def has_edges_between(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._by_host("has_edges_between", etype, u, v)

    def edge_ids_all(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._by_host("edge_ids_all", etype, u, v)

    def edge_ids_one(self, etype: int, u: Tensor, v: Tensor) -> Any:
        return self._by_host("edge_ids_one", etype, u, v)

    def is_multigraph(self) -> bool:
        return bool(self.on_host().is_multigraph())

    def node_subgraph(self, induced_nodes: Sequence[Tensor]) -> SubgraphIndex:
        part = self.on_host().node_subgraph([ids.cpu() for ids in induced_nodes])
        return self._part(part, part.induced_nodes)

    def edge_subgraph(self, induced_edges: Sequence[Tensor], preserve_nodes: bool) -> SubgraphIndex:
        edges = [ids.cpu() for ids in induced_edges]
        part = self.on_host().edge_subgraph(edges, preserve_nodes)
        # With all nodes preserved, DGL says nothing of them: its arrays cannot be read.
        nodes = map(torch.arange, self._num_nodes) if preserve_nodes else part.induced_nodes
        return self._part(part, nodes)

    def _part(self, part: Any, nodes: Iterable[Tensor]) -> SubgraphIndex:
        return SubgraphIndex(
            DeviceIndex.of(part.graph, self.device),
            [ids.to(self.device) for ids in nodes],
            [ids.to(self.device) for ids in part.induced_edges],
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(HeteroGraphIndex, name):
            raise NotImplementedError(
                f"{name} is not there for a graph on {self.device}: move it by .to('cpu')"
            )
        raise AttributeError(name)


class SubgraphIndex:
    """DGL's HeteroSubgraphIndex, of tensors."""

    def __init__(
        self, graph: DeviceIndex, induced_nodes: list[Tensor], induced_edges: list[Tensor]
    ) -> None:
        self.graph = graph
        self.induced_nodes = induced_nodes
        self.induced_edges = induced_edges


def is_device_index(index: Any) -> bool:
    """Whether it is one of ours, whatever it says its class is."""
    return type(index) is DeviceIndex


@functools.cache
def metagraph_of(num_ntypes: int) -> Any:
    """DGL's metagraph of one relation, within a type or between two."""
    return from_coo(num_ntypes, [0], [num_ntypes - 1], True)


def _unpickle(metagraph: Any, num_nodes: list[int], relations: list[Relation]) -> DeviceIndex:
    return DeviceIndex(metagraph, num_nodes, relations)
