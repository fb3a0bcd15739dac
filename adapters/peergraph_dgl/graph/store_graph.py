"""`from_store`: a graph for DGL's loaders whose structure is in the store only."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from numbers import Integral
from typing import Any, NoReturn

import dgl
import torch
from dgl import DGLGraph
from dgl.frame import Frame
from networkx import MultiDiGraph
from torch import Tensor

from peergraph.number_arguments import check_number, check_real
from peergraph.sampling import NegativeSampler, next_seed
from peergraph.store import EdgeType, NodeType, Store

from .endpoints import add_endpoints, endpoints
from .frames import FrameCache
from .frontier import FrontierSampler, IdsByType
from .storages import TableStorage
from .store_of import attach_store, idtype_of
from .subgraphs import SubgraphBuilder
from .views import EdgeView, NodeView, TypeData

_CPU = torch.device("cpu")
_int = int  # for annotations in StoreGraph, whose method `int` hides the type
_MAX_REDUNDANCY = 1000.0
_REDUNDANCY = 1.3  # the default of dgl.sampling.global_uniform_negative_sampling


def from_store(
    store: Store, *, edges: bool = False, idtype: torch.dtype | None = None
) -> StoreGraph:
    """Makes a graph for ``dgl.dataloading.DataLoader`` whose structure is in the store only.

    It needs no memory for DGL's sparse formats. One-sided unless ``edges`` is set.

    Args:
        store: a :class:`peergraph.store.Store`, such as ``store_of(g)``.
        edges: whether edges can be found by their ids, as edge prediction, ``find_edges`` and
            ``edge_subgraph`` need. Collective: adds two node ids per edge to the store, once, for
            which rank 0 reads all edges (16 bytes each).
        idtype: ``torch.int32`` or ``torch.int64``, the dtype of all ids that the graph returns;
            default: that of the graph that was shared in this process, else int64.

    Raises:
        ValueError: unknown `idtype`, or more nodes or edges than int32 can count.
    """
    idtype = _check_idtype(store, idtype_of(store) if idtype is None else idtype)
    if edges:
        for edge_type in store.edge_types:
            add_endpoints(store, edge_type)
    return StoreGraph(store, idtype)


class UnsupportedError(NotImplementedError, AttributeError):
    """A method of ``DGLGraph`` that a :class:`StoreGraph` does not implement."""


class StoreGraph:
    """A store with DGL's protocol for custom graphs; made by :func:`from_store`.

    Serves ``DataLoader`` with ``NeighborSampler``, ``MultiLayerFullNeighborSampler``,
    ``ShaDowKHopSampler``, ``ClusterGCNSampler``, ``SAINTSampler``, ``PinSAGESampler``,
    ``as_edge_prediction_sampler`` and DGL's negative samplers, with workers and in DDP. Samples are
    ``DGLGraph`` objects on the CPU. Every other method of ``DGLGraph`` raises
    ``NotImplementedError``. Copies are handles of the same store, and ``multiprocessing`` sends
    such a handle to processes of the machine; ``pickle`` and ``torch.save`` raise ``TypeError``.
    """

    is_block = False

    def __init__(self, store: Store, idtype: torch.dtype = torch.int64) -> None:
        self.store = store
        self.idtype = idtype
        self.device = _CPU
        self.ntypes: list[NodeType] = list(store.node_types)
        self.canonical_etypes: list[EdgeType] = list(store.edge_types)
        self.etypes = [edge_type[1] for edge_type in self.canonical_etypes]
        self.is_homogeneous = len(self.ntypes) == 1 and len(self.etypes) == 1
        self._sampler = FrontierSampler(store)
        self._frames = FrameCache(store)
        self._subgraphs = SubgraphBuilder(store, self._frames, idtype)
        attach_store(self, store)

    @property
    def _node_frames(self) -> list[Frame]:
        """Frames by node type, as in ``DGLGraph``; blocks select rows of them."""
        return [self._frames.frame(t, self.store.num_nodes(t)) for t in self.ntypes]

    @property
    def _edge_frames(self) -> list[Frame]:
        return [self._frames.frame(t, self.store.num_edges(t)) for t in self.canonical_etypes]

    @property
    def nodes(self) -> NodeView:
        """``g.nodes()`` and ``g.nodes[ntype].data``."""
        return NodeView(self.store, self.idtype)

    @property
    def edges(self) -> EdgeView:
        """``g.edges[etype].data``."""
        return EdgeView(self.store, self.to_canonical_etype)

    @property
    def ndata(self) -> TypeData:
        """Node tables of a graph of one node type."""
        return TypeData(self.store, self._only(self.ntypes, "ndata: g.nodes[ntype].data"))

    @property
    def edata(self) -> TypeData:
        """Edge tables of a graph of one edge type."""
        return TypeData(self.store, self._only(self.canonical_etypes, "edata: g.edges[t].data"))

    def num_nodes(self, ntype: NodeType | None = None) -> _int:
        """Returns the number of nodes of a type, or of all types."""
        types = self.ntypes if ntype is None else [ntype]
        return sum(self.store.num_nodes(t) for t in types)

    def num_edges(self, etype: Any = None) -> _int:
        """Returns the number of edges of a type, or of all types."""
        types = self.canonical_etypes if etype is None else [self.to_canonical_etype(etype)]
        return sum(self.store.num_edges(t) for t in types)

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    def int(self) -> StoreGraph:
        """Returns the same graph with int32 ids; ``ValueError`` if they do not fit."""
        return StoreGraph(self.store, _check_idtype(self.store, torch.int32))

    def long(self) -> StoreGraph:
        """Returns the same graph with int64 ids."""
        return StoreGraph(self.store, torch.int64)

    def to_canonical_etype(self, etype: Any = None) -> EdgeType:
        """Returns the (source, relation, destination) triple of an edge type; ``DGLError`` if
        ambiguous.
        """
        if etype in self.canonical_etypes:
            canonical: EdgeType = etype
            return canonical
        fitting = [t for t in self.canonical_etypes if etype in (None, t[1])]
        if len(fitting) != 1:
            raise dgl.DGLError(
                f"edge type {etype!r} means one of {fitting or self.canonical_etypes}"
            )
        return fitting[0]

    def get_etype_id(self, etype: Any = None) -> _int:
        """Returns the position of an edge type in ``canonical_etypes``."""
        return self.canonical_etypes.index(self.to_canonical_etype(etype))

    def metagraph(self) -> MultiDiGraph:
        """Returns the types of nodes, with an edge for each edge type."""
        result = MultiDiGraph()
        result.add_nodes_from(self.ntypes)
        result.add_edges_from((t[0], t[2], t[1]) for t in self.canonical_etypes)
        return result

    def get_node_storage(self, key: str, ntype: NodeType | None = None) -> TableStorage:
        """Returns the feature storage of a node table, see :class:`TableStorage`."""
        return TableStorage(
            self.store, key, self._only(self.ntypes, "ntype") if ntype is None else ntype
        )

    def get_edge_storage(self, key: str, etype: Any = None) -> TableStorage:
        """Returns the feature storage of an edge table, see :class:`TableStorage`."""
        return TableStorage(self.store, key, self.to_canonical_etype(etype))

    def sample_neighbors(
        self,
        nodes: IdsByType,
        fanout: _int | Mapping[Any, _int],
        edge_dir: str = "in",
        prob: str | None = None,
        replace: bool = False,
        *,
        exclude_edges: Any = None,
        output_device: Any = None,
    ) -> DGLGraph:
        """Samples in-edges of nodes: a graph of all nodes, with edge ids as ``edata[dgl.EID]``.

        Args:
            nodes: ids, by node type where there are several.
            fanout: edges per node and relation, or by edge type; -1: all.
            edge_dir: ``"in"``; the store holds in-edges only.
            prob: name of edge tables. Edges are drawn in proportion to a table of floats or bools,
                never an edge with 0. Of a table of integers, which is a mask, only edges with other
                values than 0 are drawn; this reads all in-edges of the nodes. Relations without
                such a table draw uniformly.
            replace: whether to draw with replacement.
            exclude_edges: edge ids, by edge type for several types, that are removed from the
                sample, as DGL does on GPUs.
            output_device: device of the result, if DGL supports graphs there.
        """
        if edge_dir != "in":
            raise NotImplementedError(
                f"edge_dir={edge_dir!r}: the store holds in-edges; share the reversed graph"
            )
        fanouts = self._fanouts(fanout)
        excluded = self._by_edge_type(exclude_edges)
        edges = self._sampler.sample(nodes, fanouts, prob, bool(replace), excluded)
        return _to_device(self._subgraphs.build(edges), output_device)

    def subgraph(
        self,
        nodes: IdsByType,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: Any = None,
    ) -> DGLGraph:
        """Returns the induced subgraph of nodes (ids or masks), as ``dgl.node_subgraph``."""
        ids, edges_by_type = self._sampler.induced(nodes)
        if relabel_nodes:
            return _to_device(self._subgraphs.build(edges_by_type, ids, store_ids), output_device)
        edges = {
            t: (ids[t[0]][row], ids[t[2]][col], edge_ids)
            for t, (row, col, edge_ids) in edges_by_type.items()
        }
        return _to_device(self._subgraphs.build(edges, None, store_ids), output_device)

    node_subgraph = subgraph

    def edge_subgraph(
        self,
        edges: Any,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: Any = None,
    ) -> DGLGraph:
        """Returns the subgraph of edge ids, as ``dgl.edge_subgraph``; needs
        ``from_store(edges=True)``.
        """
        ids_by_type = self._by_edge_type(edges) or {}
        by_relation = {}
        for edge_type in self.canonical_etypes:
            ids = ids_by_type.get(edge_type, torch.empty(0, dtype=torch.int64, device="cpu"))
            by_relation[edge_type] = (*endpoints(self.store, edge_type, ids), ids)
        result = self._subgraphs.build(by_relation, None, store_ids)
        if relabel_nodes:
            result = dgl.compact_graphs(result)
            if not store_ids:
                for node_type in self.ntypes:
                    del result.nodes[node_type].data[dgl.NID]
        return _to_device(result, output_device)

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[Tensor, Tensor]:
        """Returns sources and destinations of edges; needs ``from_store(edges=True)``."""
        source, destination = endpoints(self.store, self.to_canonical_etype(etype), _as_ids(eid))
        return source.to(self.idtype), destination.to(self.idtype)

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor | _int:
        """In-degrees of nodes, by default of all; reads the degrees of all nodes (8 bytes each)."""
        degrees = self.store.in_degree(self.to_canonical_etype(etype)).to(self.idtype)
        if v is None or isinstance(v, str):  # dgl.ALL is a string
            return degrees
        ids = _as_ids(v)
        bad = ((ids < 0) | (ids >= degrees.numel())).nonzero()
        if bad.numel():
            at = int(bad[0])
            raise IndexError(f"v[{at}] = {ids[at]} is out of range for {degrees.numel()} nodes")
        chosen = degrees[ids]
        return int(chosen) if isinstance(v, Integral) else chosen

    def global_uniform_negative_sampling(
        self,
        num_samples: _int,
        exclude_self_loops: bool = True,
        replace: bool = False,
        etype: Any = None,
        redundancy: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draws at most ``num_samples`` random node pairs without an edge, as DGL does."""
        check_number("num_samples", num_samples, 0, 2**31 - 1)
        check_real("redundancy", redundancy, 0, _MAX_REDUNDANCY)
        edge_type = self.to_canonical_etype(etype)
        tries = NegativeSampler(self.store, edge_type, avoid_edges=True)
        count = int(num_samples * (_REDUNDANCY if redundancy is None else redundancy)) + 1
        drawn = tries.sample(count, next_seed())
        assert drawn.is_edge is not None
        good = ~drawn.is_edge
        if exclude_self_loops and edge_type[0] == edge_type[2]:
            good &= drawn.source != drawn.destination
        pairs = torch.stack([drawn.source[good], drawn.destination[good]]).to("cpu", self.idtype)
        if not replace:
            pairs = torch.unique(pairs, dim=1)
            pairs = pairs[:, torch.randperm(pairs.size(1), device="cpu")]
        source, destination = pairs[:, :num_samples]
        return source, destination

    def _fanouts(self, fanout: Any) -> dict[EdgeType, _int]:
        for value in fanout.values() if isinstance(fanout, Mapping) else [fanout]:
            check_number("fanout", value, -1)
        if not isinstance(fanout, Mapping):
            return dict.fromkeys(self.canonical_etypes, int(fanout))
        fanouts = {self.to_canonical_etype(t): int(value) for t, value in fanout.items()}
        if len(fanouts) != len(self.canonical_etypes):
            raise dgl.DGLError(
                "Fan-out must be specified for each edge type if a dict is provided."
            )
        return fanouts

    def _by_edge_type(self, ids: Any) -> dict[EdgeType, Tensor] | None:
        if ids is None:
            return None
        ids_by_type = ids if isinstance(ids, Mapping) else {self.to_canonical_etype(None): ids}
        return {self.to_canonical_etype(t): _as_ids(value) for t, value in ids_by_type.items()}

    def _only(self, types: list[Any], what: str) -> Any:
        if len(types) != 1:
            raise dgl.DGLError(f"{what} is needed: the graph has the types {types}")
        return types[0]

    def __getitem__(self, key: Any) -> Any:
        raise UnsupportedError(
            f"g[{key!r}]: a StoreGraph has no graphs of single relations; "
            "peergraph_dgl.share(g) returns a DGLGraph that has them"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_graph":
            raise UnsupportedError(
                "a StoreGraph has no index that DGL's C library could read (DGLGraph._graph): "
                "peergraph_dgl.share(g) and g.subgraph(nodes) return a DGLGraph"
            )
        if name.startswith("_") or not hasattr(DGLGraph, name):
            raise AttributeError(f"'StoreGraph' object has no attribute {name!r}")
        raise UnsupportedError(
            f"a StoreGraph does not implement DGLGraph.{name}; "
            "peergraph_dgl.share(g) and g.subgraph(nodes) return a DGLGraph that does"
        )

    def __copy__(self) -> StoreGraph:
        return StoreGraph(self.store, self.idtype)

    def __deepcopy__(self, memo: dict[_int, Any]) -> StoreGraph:
        return StoreGraph(self.store, self.idtype)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "only multiprocessing pickles a StoreGraph, as a handle of its store: save the store "
            "(store.save(folder), then Store.load and from_store)"
        )

    def reduce_to_process(self) -> Any:
        """Returns what ``__reduce_ex__`` returns, for a process of this machine."""
        return StoreGraph, (self.store, self.idtype)

    def __repr__(self) -> str:
        return f"StoreGraph({self.store!r})"


ForkingPickler.register(StoreGraph, StoreGraph.reduce_to_process)


def _as_ids(ids: Any) -> Tensor:
    tensor: Tensor = torch.as_tensor(ids)
    if tensor.dtype == torch.bool:
        return tensor.nonzero().view(-1)
    if tensor.is_floating_point() and tensor.numel():  # torch makes floats of an empty list
        raise dgl.DGLError(f"ids must be integers or a mask, got {tensor.dtype}")
    return tensor.reshape(-1).to(torch.int64)


def _to_device(graph: DGLGraph, device: Any) -> DGLGraph:
    return graph if device is None else graph.to(device)


def _check_idtype(store: Store, idtype: Any) -> torch.dtype:
    if idtype not in (torch.int32, torch.int64):
        raise ValueError(f"idtype: expected torch.int32 or torch.int64, got {idtype!r}")
    largest = max(
        *(store.num_nodes(t) for t in store.node_types),
        *(store.num_edges(t) for t in store.edge_types),
        0,
    )
    if largest > torch.iinfo(idtype).max:
        raise ValueError(f"idtype: {idtype} cannot count {largest} nodes or edges of one type")
    checked: torch.dtype = idtype
    return checked
