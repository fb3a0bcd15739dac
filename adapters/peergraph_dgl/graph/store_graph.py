"""`from_store`: a store as the graph that DGL's loaders take, without a DGL graph inside."""

from __future__ import annotations

from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from numbers import Integral
from typing import Any, NoReturn

import dgl
import torch
from dgl import DGLGraph
from dgl.frame import Frame
from torch import Tensor

from peergraph.sampling import NegativeSampler, next_seed
from peergraph.store import EdgeType, NodeType, Store

from .endpoints import add_endpoints, endpoints
from .frontier import FrontierSampler, IdsByType
from .storages import TableStorage
from .store_of import attach, idtype_of
from .subgraphs import IdTypes, Parts, checked_idtype
from .views import EdgeView, Frames, NodeView, TypeData

_CPU = torch.device("cpu")
_REDUNDANCY = 1.3  # DGL's


def from_store(
    store: Store, *, edges: bool = False, idtype: torch.dtype | None = None
) -> StoreGraph:
    """A graph for ``dgl.dataloading.DataLoader`` whose structure is in the store only.

    For structures too large to lie in DGL's formats, too. One-sided, unless ``edges``.

    Args:
        store: built with :class:`peergraph.store.Store`, or ``store_of(g)``.
        edges: whether edges must be found by their ids: for edge prediction, ``find_edges`` and
            ``edge_subgraph``. Adds two ids an edge to the store, once; collective then: rank 0
            reads all edges (16 bytes each) to write them.
        idtype: ``torch.int32`` or ``torch.int64``, of all ids that the graph gives; default: that
            of the graph of which :func:`share` made the store in this process, else int64.

    Raises:
        ValueError: another `idtype`, or nodes or edges that int32 does not count.
    """
    idtype = checked_idtype(store, idtype_of(store) if idtype is None else idtype)
    if edges:
        for edge_type in store.edge_types:
            add_endpoints(store, edge_type)
    return StoreGraph(store, idtype)


class UnsupportedError(NotImplementedError, AttributeError):
    """A method of ``DGLGraph`` that needs more than a store serves one-sided."""


class StoreGraph(IdTypes):
    """DGL's protocol of custom graphs over a store; made by :func:`from_store`.

    Serves ``DataLoader`` with ``NeighborSampler``, ``MultiLayerFullNeighborSampler``,
    ``ShaDowKHopSampler``, ``ClusterGCNSampler`` with a partition at hand,
    ``as_edge_prediction_sampler`` and DGL's negative samplers; with workers and in DDP. What it
    samples is real: ``DGLGraph`` on the CPU. Every other method of ``DGLGraph`` raises
    ``NotImplementedError``. Copies, and what ``multiprocessing`` sends to another process of the
    machine, are handles of the same store; ``pickle`` and ``torch.save`` raise ``TypeError``.
    """

    is_block = False
    is_homogeneous: bool

    def __init__(self, store: Store, idtype: torch.dtype = torch.int64) -> None:
        self.store = store
        self.idtype = idtype
        self.device = _CPU
        self.ntypes: list[NodeType] = list(store.node_types)
        self.canonical_etypes: list[EdgeType] = list(store.edge_types)
        self.etypes = [edge_type[1] for edge_type in self.canonical_etypes]
        self.is_homogeneous = len(self.ntypes) == 1 and len(self.etypes) == 1
        self._sampler = FrontierSampler(store)
        self._frames = Frames(store)
        self._parts = Parts(store, self._frames, idtype)
        attach(self, store)

    @property
    def _node_frames(self) -> list[Frame]:
        """As DGLGraph has them: what the data of blocks are rows of."""
        return [self._frames.of(t, self.store.num_nodes(t)) for t in self.ntypes]

    @property
    def _edge_frames(self) -> list[Frame]:
        return [self._frames.of(t, self.store.num_edges(t)) for t in self.canonical_etypes]

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

    def num_nodes(self, ntype: NodeType | None = None) -> int:
        """Nodes of a type, or of all."""
        types = self.ntypes if ntype is None else [ntype]
        return sum(self.store.num_nodes(t) for t in types)

    def num_edges(self, etype: Any = None) -> int:
        """Edges of a type, or of all."""
        types = self.canonical_etypes if etype is None else [self.to_canonical_etype(etype)]
        return sum(self.store.num_edges(t) for t in types)

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    def to_canonical_etype(self, etype: Any = None) -> EdgeType:
        """The triple that an edge type means; ``DGLError`` where there is none, or several."""
        if etype in self.canonical_etypes:
            found: EdgeType = etype
            return found
        fitting = [t for t in self.canonical_etypes if etype in (None, t[1])]
        if len(fitting) != 1:
            raise dgl.DGLError(
                f"edge type {etype!r} means one of {fitting or self.canonical_etypes}"
            )
        return fitting[0]

    def get_node_storage(self, key: str, ntype: NodeType | None = None) -> TableStorage:
        """The feature storage of a node table."""
        return TableStorage(
            self.store, key, self._only(self.ntypes, "ntype") if ntype is None else ntype
        )

    def get_edge_storage(self, key: str, etype: Any = None) -> TableStorage:
        """The feature storage of an edge table."""
        return TableStorage(self.store, key, self.to_canonical_etype(etype))

    def sample_neighbors(
        self,
        nodes: IdsByType,
        fanout: int | Mapping[Any, int],
        edge_dir: str = "in",
        prob: str | None = None,
        replace: bool = False,
        *,
        exclude_edges: Any = None,
        output_device: Any = None,
    ) -> DGLGraph:
        """Sampled in-edges of nodes, in a graph of all nodes, with their ids as ``edata[dgl.EID]``.

        Args:
            nodes: ids, by node type where there are several.
            fanout: edges per node and relation, or by edge type; -1: all.
            edge_dir: ``"in"``; the store knows in-edges only.
            prob: name of edge tables: of floats, the edges are drawn in proportion to it and never
                where it is 0; of bools or integers, only edges where it is not 0 are drawn, which
                reads the whole lists of the nodes. Relations without such a table draw uniformly.
            replace: draw with replacement.
            exclude_edges: edge ids, by edge type where there are several, taken out of what was
                drawn, as DGL does on GPUs.
            output_device: where the result goes, if DGL can put a graph there.
        """
        if edge_dir != "in":
            raise NotImplementedError(
                f"edge_dir={edge_dir!r}: the store knows in-edges; share the reversed graph"
            )
        fanouts = self._fanouts(fanout)
        excluded = self._by_edge_type(exclude_edges)
        found = self._sampler.sample(nodes, fanouts, prob, bool(replace), excluded)
        return _placed(self._parts.graph(found), output_device)

    def subgraph(
        self,
        nodes: IdsByType,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: Any = None,
    ) -> DGLGraph:
        """The edges among nodes (ids or masks), as ``dgl.node_subgraph`` gives them."""
        ids, found = self._sampler.induced(nodes)
        if relabel_nodes:
            return _placed(self._parts.graph(found, ids, store_ids), output_device)
        glob = {
            t: (ids[t[0]][row], ids[t[2]][col], edge_ids)
            for t, (row, col, edge_ids) in found.items()
        }
        return _placed(self._parts.graph(glob, None, store_ids), output_device)

    node_subgraph = subgraph

    def edge_subgraph(
        self,
        edges: Any,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: Any = None,
    ) -> DGLGraph:
        """Edges by their ids, as of ``dgl.edge_subgraph``; needs ``from_store(edges=True)``."""
        wanted = self._by_edge_type(edges) or {}
        found = {}
        for edge_type in self.canonical_etypes:
            ids = wanted.get(edge_type, torch.empty(0, dtype=torch.int64, device="cpu"))
            found[edge_type] = (*endpoints(self.store, edge_type, ids), ids)
        result = self._parts.graph(found, None, store_ids)
        if relabel_nodes:
            result = dgl.compact_graphs(result)
            if not store_ids:
                for node_type in self.ntypes:
                    del result.nodes[node_type].data[dgl.NID]
        return _placed(result, output_device)

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[Tensor, Tensor]:
        """Sources and destinations of edges; needs ``from_store(edges=True)``."""
        source, destination = endpoints(self.store, self.to_canonical_etype(etype), _as_ids(eid))
        return source.to(self.idtype), destination.to(self.idtype)

    def in_degrees(self, v: Any = None, etype: Any = None) -> Tensor | int:
        """In-degrees of nodes, by default of all; reads those of all nodes (8 bytes each)."""
        degrees = self.store.in_degree(self.to_canonical_etype(etype)).to(self.idtype)
        if v is None or isinstance(v, str):  # DGL's way to say all
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
        num_samples: int,
        exclude_self_loops: bool = True,
        replace: bool = False,
        etype: Any = None,
        redundancy: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """At most ``num_samples`` random pairs that are no edges, as DGL gives them."""
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

    def _fanouts(self, fanout: Any) -> dict[EdgeType, int]:
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
        given = ids if isinstance(ids, Mapping) else {self.to_canonical_etype(None): ids}
        return {self.to_canonical_etype(t): _as_ids(value) for t, value in given.items()}

    def _only(self, types: list[Any], what: str) -> Any:
        if len(types) != 1:
            raise dgl.DGLError(f"{what} is needed: the graph has the types {types}")
        return types[0]

    def __getitem__(self, key: Any) -> Any:
        raise UnsupportedError(
            f"g[{key!r}]: a graph without a DGL graph inside has no parts by relation; "
            "peergraph_dgl.share(g) gives a DGLGraph that has"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "_graph":
            raise UnsupportedError(
                "there is no DGL graph inside that DGL's C library could read (DGLGraph._graph): "
                "peergraph_dgl.share(g) gives a DGLGraph, g.subgraph(nodes) one of a part"
            )
        if name.startswith("_") or not hasattr(DGLGraph, name):
            raise AttributeError(f"'StoreGraph' object has no attribute {name!r}")
        raise UnsupportedError(
            f"DGLGraph.{name} is not served by a graph without a DGL graph inside; "
            "peergraph_dgl.share(g) gives a DGLGraph that has it, g.subgraph(nodes) one of a part"
        )

    def __copy__(self) -> StoreGraph:
        return StoreGraph(self.store, self.idtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> StoreGraph:
        return StoreGraph(self.store, self.idtype)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a StoreGraph is pickled by multiprocessing only, as a handle that lives as long as "
            "its store: save the store (store.save(folder), then Store.load and from_store)"
        )

    def reduce_to_process(self) -> Any:
        """What ``__reduce_ex__`` returns, for a process of this machine."""
        return StoreGraph, (self.store, self.idtype)

    def __repr__(self) -> str:
        return f"StoreGraph({self.store!r})"


ForkingPickler.register(StoreGraph, StoreGraph.reduce_to_process)


def _as_ids(ids: Any) -> Tensor:
    tensor: Tensor = torch.as_tensor(ids)
    if tensor.dtype == torch.bool:
        return tensor.nonzero().view(-1)
    if tensor.is_floating_point() and tensor.numel():  # an empty list is one of floats, to torch
        raise dgl.DGLError(f"ids must be integers or a mask, got {tensor.dtype}")
    return tensor.reshape(-1).to(torch.int64)


def _placed(graph: DGLGraph, device: Any) -> DGLGraph:
    return graph if device is None else graph.to(device)
