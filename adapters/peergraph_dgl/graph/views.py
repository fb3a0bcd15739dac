"""The data of a graph without a DGL graph inside, by the names that DGL's scripts use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from dgl.frame import Frame
from torch import Tensor

from peergraph.store import EdgeType, NodeType, Store, TableTensor

from .columns import store_columns
from .endpoints import NAMES

_CPU = torch.device("cpu")


class TypeData(Mapping[str, TableTensor]):
    """The tables of one node or edge type as tensors on the CPU that read rows when asked."""

    def __init__(self, store: Store, owner: NodeType | EdgeType) -> None:
        self._store = store
        self._owner = owner

    def _names(self) -> list[str]:
        if isinstance(self._owner, tuple):
            return [n for n in self._store.edge_table_names(self._owner) if n not in NAMES]
        return self._store.node_table_names(self._owner)

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
            "columns are the tables of the store, which ranks neither take away nor replace each "
            "by itself; peergraph_dgl.share(g) gives a DGLGraph whose columns come and go"
        )

    pop = update = clear = _refuse

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


class Space(NamedTuple):
    """What ``g.nodes[ntype]`` and ``g.edges[etype]`` give."""

    data: TypeData


class NodeView:
    """``g.nodes``."""

    def __init__(self, store: Store, idtype: torch.dtype) -> None:
        self._store = store
        self._idtype = idtype

    def __getitem__(self, node_type: NodeType | None) -> Space:
        """The data of a type; None: of the only one."""
        if node_type is None and len(self._store.node_types) == 1:
            node_type = self._store.node_types[0]
        if not isinstance(node_type, str):
            raise NotImplementedError(
                f"g.nodes[{node_type!r}]: expected a node type; "
                "g.nodes[ntype].data[name][ids] reads and writes rows"
            )
        self._store.num_nodes(node_type)  # KeyError for an unknown one
        return Space(TypeData(self._store, node_type))

    def __call__(self, ntype: NodeType | None = None) -> Tensor:
        """All ids of a type."""
        (only,) = self._store.node_types if ntype is None else [ntype]
        return torch.arange(self._store.num_nodes(only), dtype=self._idtype, device="cpu")


class EdgeView:
    """``g.edges``."""

    def __init__(self, store: Store, canonical: Callable[[Any], EdgeType]) -> None:
        self._store = store
        self._canonical = canonical

    def __getitem__(self, edge_type: Any) -> Space:
        """The data of a type; None: of the only one."""
        named = isinstance(edge_type, tuple) and all(isinstance(name, str) for name in edge_type)
        if not (named or edge_type is None or isinstance(edge_type, str)):
            raise NotImplementedError(
                f"g.edges[{edge_type!r}]: expected an edge type; "
                "g.edges[etype].data[name][ids] reads and writes rows"
            )
        return Space(TypeData(self._store, self._canonical(edge_type)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """All edges would have to be read: raises ``NotImplementedError``."""
        raise NotImplementedError(
            "g.edges() is not served by a graph without a DGL graph inside; store.edge_index() "
            "reads all edges"
        )


class Frames:
    """DGL's frames of columns whose values are the tables of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[NodeType | EdgeType, Frame] = {}

    def of(self, owner: NodeType | EdgeType, rows: int) -> Frame:
        """The frame of a node or edge type; made anew when there are other tables than before."""
        names = list(TypeData(self._store, owner))
        frame = self._made.get(owner)
        if frame is None or list(frame.keys()) != names:
            frame = Frame(store_columns(self._store, owner, names), num_rows=rows)
            self._made[owner] = frame
        return frame
