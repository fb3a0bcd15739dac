"""``g.nodes``, ``g.edges`` and their data for a graph over a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from peergraph.store import EdgeType, NodeType, Store, TableTensor

from .endpoints import ENDPOINT_TABLES

_CPU = torch.device("cpu")


def table_names(store: Store, owner: NodeType | EdgeType) -> list[str]:
    """Returns the names of a type's tables, without the endpoint tables of edges."""
    if isinstance(owner, tuple):
        return [n for n in store.edge_table_names(owner) if n not in ENDPOINT_TABLES]
    return store.node_table_names(owner)


class TypeData(Mapping[str, TableTensor]):
    """The tables of one node or edge type as tensors on the CPU that read rows on indexing."""

    def __init__(self, store: Store, owner: NodeType | EdgeType) -> None:
        self._store = store
        self._owner = owner

    def __getitem__(self, name: str) -> TableTensor:
        return TableTensor(self._store, self._owner, name, _CPU)

    def __setitem__(self, name: str, values: Tensor) -> None:
        raise NotImplementedError(
            f"data[{name!r}] = values: add it to the store, by add_node_table or add_edge_table, "
            "on all ranks"
        )

    def __delitem__(self, name: str) -> None:
        self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "columns are the tables of the store, which one rank can neither delete nor replace; "
            "peergraph_dgl.share(g) returns a DGLGraph whose columns each rank can change"
        )

    pop = update = clear = _refuse

    def __iter__(self) -> Iterator[str]:
        return iter(table_names(self._store, self._owner))

    def __len__(self) -> int:
        return len(table_names(self._store, self._owner))


class TypeView(NamedTuple):
    """The result of ``g.nodes[ntype]`` and ``g.edges[etype]``."""

    data: TypeData


class NodeView:
    """``g.nodes``."""

    def __init__(self, store: Store, idtype: torch.dtype) -> None:
        self._store = store
        self._idtype = idtype

    def __getitem__(self, node_type: NodeType | None) -> TypeView:
        """Returns the data of a type; None: of the only type."""
        if node_type is None and len(self._store.node_types) == 1:
            node_type = self._store.node_types[0]
        if not isinstance(node_type, str):
            raise NotImplementedError(
                f"g.nodes[{node_type!r}]: expected a node type; "
                "g.nodes[ntype].data[name][ids] reads and writes rows"
            )
        self._store.num_nodes(node_type)  # KeyError for an unknown one
        return TypeView(TypeData(self._store, node_type))

    def __call__(self, ntype: NodeType | None = None) -> Tensor:
        """Returns all node ids of a type."""
        (only,) = self._store.node_types if ntype is None else [ntype]
        return torch.arange(self._store.num_nodes(only), dtype=self._idtype, device="cpu")


class EdgeView:
    """``g.edges``."""

    def __init__(self, store: Store, canonical: Callable[[Any], EdgeType]) -> None:
        self._store = store
        self._canonical = canonical

    def __getitem__(self, edge_type: Any) -> TypeView:
        """Returns the data of a type; None: of the only type."""
        named = isinstance(edge_type, tuple) and all(isinstance(name, str) for name in edge_type)
        if not (named or edge_type is None or isinstance(edge_type, str)):
            raise NotImplementedError(
                f"g.edges[{edge_type!r}]: expected an edge type; "
                "g.edges[etype].data[name][ids] reads and writes rows"
            )
        return TypeView(TypeData(self._store, self._canonical(edge_type)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ``NotImplementedError``: it would read all edges."""
        raise NotImplementedError(
            "g.edges() is not implemented for a StoreGraph; store.edge_index() reads all edges"
        )
