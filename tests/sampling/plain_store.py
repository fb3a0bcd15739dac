"""A store of plain tensors in one process, in any placement, for tests of the sampler alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from peergraph import _C
from peergraph.reference.sampling import Csc

NODE = "_N"
EDGE = (NODE, "_E", NODE)


@dataclass
class Layout:
    """How destinations are spread: shares of the replicated and sharded tier, the rest on the
    host; the number of shards; whether nodes are renumbered by out-degree.
    """

    replicated: float = 1.0
    sharded: float = 0.0
    num_shards: int = 1
    renumber: bool = False


SINGLE = Layout()
LAYOUTS = {
    "single": SINGLE,
    "renumbered": Layout(renumber=True),
    "sharded": Layout(0.0, 1.0, num_shards=3, renumber=True),
    "host": Layout(0.0, 0.0, renumber=True),
    "three tiers": Layout(0.3, 0.4, num_shards=4, renumber=True),
}
LAYOUT_PARAMS = [pytest.param(layout, id=name) for name, layout in LAYOUTS.items()]
INDEX_DTYPES = [torch.int32, torch.int64]


@dataclass
class IdMap:
    to_internal: Tensor | None
    to_user: Tensor | None

    @property
    def internal_view(self) -> _C.IdMapView:
        return _C.IdMapView(self.to_internal)

    @property
    def user_view(self) -> _C.IdMapView:
        return _C.IdMapView(self.to_user)


@dataclass
class Structure:
    view: _C.CscView
    parts: list[Tensor] = field(repr=False)  # what the view points to


def _host(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.cpu().pin_memory() if device.type == "cuda" else tensor


def make_structure(
    csc: Csc,
    layout: Layout,
    to_internal: tuple[Tensor, Tensor],
    index_dtype: torch.dtype,
    device: torch.device,
) -> Structure:
    """Spreads a CSC over tiers.

    Args:
        to_internal: internal ids of destinations and of sources.
    """
    indptr, indices = torch.from_numpy(csc.indptr), torch.from_numpy(csc.indices)
    rows = indptr.numel() - 1
    destinations, sources = to_internal
    user_of = torch.empty_like(destinations)
    user_of[destinations] = torch.arange(rows)
    new_indices = sources[indices].to(index_dtype)
    cut = int(rows * layout.replicated)
    dealt = int(rows * layout.sharded)
    parts: list[Tensor] = []

    def part(internal: Tensor, on_host: bool = False) -> tuple[int, int, int]:
        users = user_of[internal]
        begin = indptr[users]
        degrees = indptr[users + 1] - begin
        ends = degrees.cumsum(0)
        # Where the edges of each row are: as many as its degree, from its begin on.
        edges = torch.arange(int(degrees.sum())) + (begin - ends + degrees).repeat_interleave(
            degrees
        )
        arrays = (torch.cat([torch.zeros(1, dtype=torch.int64), ends]), new_indices[edges], begin)
        near = [_host(a, device) if on_host else a.to(device) for a in arrays]
        parts.extend(near)
        a, b, c = (t.data_ptr() for t in near)
        return a, b, c

    internal = torch.arange(rows)
    edge_ids = _C.TableView()
    if csc.edge_ids is not None and csc.edge_ids.size:
        ids = torch.from_numpy(csc.edge_ids).to(device)
        parts.append(ids)
        edge_ids = _C.TableView(
            replicated=ids.numel(),
            sharded=0,
            rows=ids.numel(),
            row_bytes=8,
            rank=0,
            replicas=[ids.data_ptr()],
            shards=[],
            host=0,
        )
    view = _C.CscView(
        replicated=cut,
        sharded=dealt,
        rows=rows,
        num_edges=indices.numel(),
        index_bytes=index_dtype.itemsize,
        rank=0,
        replicas=[part(internal[:cut])],
        shards=[
            part(internal[cut : cut + dealt][s :: layout.num_shards])
            for s in range(layout.num_shards)
        ],
        host=part(internal[cut + dealt :], on_host=True),
        edge_ids=edge_ids,
    )
    return Structure(view, parts)


class PlainTable:
    """One column, spread over tiers by a layout.

    Args:
        order: [rows] user id -> internal row; None: the user's ids are the rows.
    """

    def __init__(
        self, values: Tensor, layout: Layout, order: Tensor | None, device: torch.device
    ) -> None:
        self.shape, self.dtype, self.device = tuple(values.shape), values.dtype, device
        rows = values.shape[0]
        internal = values
        if order is not None:
            internal = torch.empty_like(values)
            internal[order.cpu().long()] = values
        cut, dealt = int(rows * layout.replicated), int(rows * layout.sharded)
        shards = internal[cut : cut + dealt]
        near = [internal[:cut], *(shards[s :: layout.num_shards] for s in range(layout.num_shards))]
        parts = [part.contiguous().to(device) for part in near]
        parts.append(_host(internal[cut + dealt :].contiguous(), device))
        self._parts = [*parts, order]
        self.view = _C.TableView(
            replicated=cut,
            sharded=dealt,
            rows=rows,
            row_bytes=values[:1].numel() * values.element_size() if rows else 0,
            rank=0,
            replicas=[parts[0].data_ptr()],
            shards=[part.data_ptr() for part in parts[1:-1]],
            host=parts[-1].data_ptr(),
            order=order,
        )
        self._values = values.to(device)
        self.write_mark = SimpleNamespace(value=1)

    def gather(self, ids: Tensor) -> Tensor:
        return self._values[ids.to(self.device)]


class PlainStore:
    """Has what the sampler asks of a store."""

    def __init__(
        self,
        num_nodes: dict[str, int],
        relations: dict[tuple[str, str, str], Csc],
        *,
        layout: Layout = SINGLE,
        index_dtype: torch.dtype = torch.int32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.measuring = None
        self.node_types = list(num_nodes)
        self.edge_types = list(relations)
        self.relations = relations
        self._num_nodes = num_nodes
        orders = {t: self._order(t, layout) for t in num_nodes}
        self._id_maps = {t: self._id_map(order, index_dtype, layout) for t, order in orders.items()}
        self._structures = {
            t: make_structure(csc, layout, (orders[t[2]], orders[t[0]]), index_dtype, self.device)
            for t, csc in relations.items()
        }
        self._layout = layout
        self._tables: dict[object, dict[str, PlainTable]] = {}

    def add_table(
        self, of: object, name: str, values: np.ndarray, *, own_order: bool = True
    ) -> None:
        """A column for a node type or an edge type; node tables lie in internal order unless the
        store's `own_order` is not to be theirs, too.
        """
        is_node = of in self.node_types
        order = self._id_maps[of].to_internal if is_node and own_order else None
        table = PlainTable(torch.from_numpy(values), self._layout, order, self.device)
        self._tables.setdefault(of, {})[name] = table

    def register_scratch(self, name: str, scratch: object) -> None:
        """Reports nothing."""

    def node_table_names(self, node_type: str = NODE) -> list[str]:
        return list(self._tables.get(node_type, {}))

    def edge_table_names(self, edge_type: tuple[str, str, str] = EDGE) -> list[str]:
        return list(self._tables.get(edge_type, {}))

    def node_table(self, name: str, node_type: str = NODE) -> PlainTable:
        return self._tables[node_type][name]

    def edge_table(self, name: str, edge_type: tuple[str, str, str] = EDGE) -> PlainTable:
        return self._tables[edge_type][name]

    def _order(self, node_type: str, layout: Layout) -> Tensor:
        """[nodes] internal id of each user id."""
        count = self._num_nodes[node_type]
        if not layout.renumber:
            return torch.arange(count)
        hotness = torch.zeros(count, dtype=torch.int64)
        for (source, _, _), csc in self.relations.items():
            if source == node_type:
                hotness += torch.from_numpy(np.bincount(csc.indices, minlength=count))
        by_hotness = torch.argsort(hotness, descending=True, stable=True)
        order = torch.empty_like(by_hotness)
        order[by_hotness] = torch.arange(count)
        return order

    def _id_map(self, order: Tensor, dtype: torch.dtype, layout: Layout) -> IdMap:
        if not layout.renumber:
            return IdMap(None, None)
        to_user = torch.empty_like(order)
        to_user[order] = torch.arange(order.numel())
        return IdMap(order.to(self.device, dtype), to_user.to(self.device, dtype))

    def num_nodes(self, node_type: str = NODE) -> int:
        return self._num_nodes[node_type]

    def num_edges(self, edge_type: tuple[str, str, str] = EDGE) -> int:
        return self.relations[edge_type].indices.size

    def id_map(self, node_type: str = NODE) -> IdMap:
        return self._id_maps[node_type]

    def csc(self, edge_type: tuple[str, str, str] = EDGE) -> Structure:
        return self._structures[edge_type]

    @classmethod
    def homogeneous(cls, csc: Csc, **options: object) -> PlainStore:
        return cls({NODE: csc.indptr.size - 1}, {EDGE: csc}, **options)


def random_csc(
    rng: np.random.Generator,
    num_sources: int,
    num_destinations: int,
    mean_degree: float,
    *,
    own_edge_ids: bool = True,
) -> Csc:
    """A random multigraph with very uneven degrees, isolated nodes and self loops."""
    if num_sources == 0 or num_destinations == 0:
        return Csc(np.zeros(num_destinations + 1, np.int64), np.zeros(0, np.int64))
    degrees = np.minimum(rng.geometric(1 / (mean_degree + 1), num_destinations) - 1, 4000)
    degrees[rng.random(num_destinations) < 0.2] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    indices = rng.integers(0, num_sources, indptr[-1])
    edge_ids = rng.permutation(indptr[-1]).astype(np.int64) if own_edge_ids else None
    return Csc(indptr, indices.astype(np.int64), edge_ids)


def csc_with_degrees(degrees: list[int], num_nodes: int | None = None) -> Csc:
    """Node d has neighbours 0 .. degrees[d] - 1, in this order; all further nodes have none."""
    num_nodes = max([len(degrees), *degrees]) if num_nodes is None else num_nodes
    padded = np.zeros(num_nodes, np.int64)
    padded[: len(degrees)] = degrees
    return Csc(
        np.concatenate([[0], np.cumsum(padded)]).astype(np.int64),
        np.concatenate([np.arange(d) for d in degrees] or [np.zeros(0)]).astype(np.int64),
    )
