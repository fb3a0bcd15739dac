"""``Node2Vec`` and ``MetaPath2Vec`` of PyG, whose walks read a store."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor

from peergraph.sampling import RandomWalker, next_seed
from peergraph.store import EdgeType, NodeType, Store, reverse_type

from ..data.edge_index_tensor import EdgeIndexTensor
from .in_process import drop_workers


class Node2Vec(torch_geometric.nn.Node2Vec):  # type: ignore[misc]
    """``torch_geometric.nn.Node2Vec`` on the walks of a store, drawn on its device.

    PyG's class becomes this one for the ``edge_index`` of shared data; it needs no pyg-lib, and
    keeps no edges. Walks follow edges in their direction, with a seed for each batch from torch's
    default generator, so the first such model is made by all ranks together
    (:meth:`peergraph.store.Store.reversed`).

    Args:
        edge_index: of data that :func:`peergraph_pyg.share` returned; its ends are of one type.
        num_nodes: None, or the store's number of nodes.

    The other arguments are PyG's. With `p` or `q`, a step to x after one from t counts as between
    neighbours where the graph has the edge from t to x.

    Raises:
        NotImplementedError: sources and destinations are of different types.
        ValueError: another number of nodes, or `walk_length` below `context_size`.
    """

    def __init__(
        self,
        edge_index: EdgeIndexTensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)
        store, edge_type = edge_index.store, edge_index.edge_type
        if edge_type[0] != edge_type[2]:
            raise NotImplementedError(
                f"Node2Vec: {edge_type} joins two node types; use MetaPath2Vec"
            )
        if walk_length < context_size:
            raise ValueError(
                f"walk_length must not be below context_size, got {walk_length} and {context_size}"
            )
        self.num_nodes = _check_count(edge_type[0], num_nodes, store)
        self.rowptr = self.col = None
        self.random_walk_fn = _Walks(store, [edge_type])
        self.EPS = 1e-15
        self.embedding_dim = embedding_dim
        self.walk_length, self.context_size = walk_length - 1, context_size
        self.walks_per_node, self.num_negative_samples = walks_per_node, num_negative_samples
        self.p, self.q = p, q
        self.embedding = torch.nn.Embedding(self.num_nodes, embedding_dim, sparse=sparse)
        self.reset_parameters()

    def loader(self, **kwargs: Any) -> Any:
        """PyG's loader of walks; ``num_workers`` has no effect for a store on a GPU."""
        drop_workers(kwargs, self.random_walk_fn.walker.store)
        return super().loader(**kwargs)


class MetaPath2Vec(torch_geometric.nn.MetaPath2Vec):  # type: ignore[misc]
    """``torch_geometric.nn.MetaPath2Vec`` on the walks of a store, drawn on its device.

    PyG's class becomes this one for the edge indices of shared data. It keeps no edges; the first
    such model is made by all ranks together (:meth:`peergraph.store.Store.reversed`).

    Args:
        edge_index_dict: edge indices by edge type, of data that :func:`peergraph_pyg.share`
            returned: ``data.edge_index_dict``.
        num_nodes_dict: None, or the store's numbers of nodes.

    The other arguments are PyG's.

    Raises:
        KeyError: an edge type of the metapath is not in the dict.
        ValueError, AttributeError: as PyG's; another number of nodes.
    """

    def __init__(
        self,
        edge_index_dict: dict[EdgeType, EdgeIndexTensor],
        embedding_dim: int,
        metapath: list[EdgeType],
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        num_nodes_dict: dict[NodeType, int] | None = None,
        sparse: bool = False,
    ) -> None:
        edges = [edge_index_dict[edge_type] for edge_type in metapath]
        store = edges[0].store
        types = {node_type for t in metapath for node_type in (t[0], t[2])}
        counts = {t: _check_count(t, (num_nodes_dict or {}).get(t), store) for t in types}
        super().__init__(
            {},  # no edges to copy
            embedding_dim,
            metapath,
            walk_length,
            context_size,
            walks_per_node,
            num_negative_samples,
            counts,
            sparse,
        )
        self._walks = _Walks(store, [edge_index.edge_type for edge_index in edges])

    def loader(self, **kwargs: Any) -> Any:
        """PyG's loader of walks; ``num_workers`` has no effect for a store on a GPU."""
        drop_workers(kwargs, self._walks.walker.store)
        return super().loader(**kwargs)

    def _pos_sample(self, batch: Tensor) -> Tensor:
        starts = batch.repeat(self.walks_per_node)
        nodes = self._walks.walker.walk(starts, self.walk_length, next_seed(), dead_end="pad").nodes
        walks = torch.where(nodes < 0, self.dummy_idx, nodes + self.offset.to(nodes.device))
        return torch.cat(list(walks.unfold(1, self.context_size, 1).unbind(1)))


class _Walks:
    """Walks along edges, in the place of pyg-lib's function."""

    def __init__(self, store: Store, metapath: list[EdgeType]) -> None:
        self.walker = RandomWalker(store.reversed(), [reverse_type(t) for t in metapath])

    def __call__(
        self, rowptr: None, col: None, batch: Tensor, walk_length: int, p: float, q: float
    ) -> Tensor:
        return self.walker.walk(batch, walk_length, next_seed(), p=p, q=q).nodes

    def __deepcopy__(self, memo: Any) -> _Walks:
        return self  # copies of a model read the same store


def _check_count(node_type: NodeType, count: int | None, store: Store) -> int:
    """Returns the number of nodes of the store; ``ValueError`` if another one is asked for."""
    if count not in (None, store.num_nodes(node_type)):
        raise ValueError(
            f"the number of nodes of {node_type!r} is {store.num_nodes(node_type)}, got {count}"
        )
    return store.num_nodes(node_type)
