"""Checks the options by which a sampler chooses neighbours, and finds their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from peergraph import _C
from peergraph.sampling.arguments import as_integer, check_integer_tensor
from peergraph.sampling.sample import EdgeType, NodeType

if TYPE_CHECKING:
    from peergraph.memory import Table
    from peergraph.store import Store

Type = TypeVar("Type", NodeType, EdgeType)

_WEIGHT_DTYPES = (torch.float32, torch.float64, torch.bool)
_TIME_DTYPES = (torch.int32, torch.int64)
_CHECK_ROWS = 1 << 24
_valid_weights: WeakSet[Table] = WeakSet()
_LONGEST_WINDOW = 2**63 - 1
TimeWindow = int | Mapping[NodeType | EdgeType, int]


class SeedTimes(NamedTuple):
    """[seeds] int64 on the sampler's device, for the seeds of all types; None: no limit."""

    latest: Tensor | None = None
    earliest: Tensor | None = None


class NeighborOptions:
    """The options of :class:`NeighborSampler` with these names; errors as there.

    `timed` tells whether any relation is temporal.
    """

    def __init__(
        self,
        store: Store,
        replace: bool,
        weights: str | Mapping[EdgeType, str] | None,
        node_time: str | Mapping[NodeType, str] | None,
        edge_time: str | Mapping[EdgeType, str] | None,
        temporal_strategy: str,
        time_window: TimeWindow | None,
        labor: bool,
        layer_dependency: bool,
        skip_zero_weights: bool,
    ) -> None:
        if temporal_strategy not in ("uniform", "last"):
            raise ValueError(
                f"temporal_strategy: expected 'uniform' or 'last', got {temporal_strategy!r}"
            )
        if node_time is not None and edge_time is not None:
            raise ValueError("edge_time: node_time was given, too; expected one of them")
        self.replace = bool(replace)
        self.weights = _names("weights", weights, store.edge_types, store.edge_table_names)
        self.node_time = _names("node_time", node_time, store.node_types, store.node_table_names)
        self.edge_time = _names("edge_time", edge_time, store.edge_types, store.edge_table_names)
        self.timed = bool(self.node_time or self.edge_time)
        self.time_window = self._windows(time_window)
        self.last = temporal_strategy == "last"
        if self.last and not self.timed:
            raise ValueError("temporal_strategy: 'last' needs node_time or edge_time")
        if self.last and self.weights:
            raise ValueError("weights: temporal_strategy='last' does not draw by them")
        self.labor = bool(labor)
        self.layer_dependency = bool(layer_dependency)
        self.skip_zero_weights = bool(skip_zero_weights)
        if self.skip_zero_weights and not self.weights:
            raise ValueError("skip_zero_weights: needs weights")
        if self.layer_dependency and not self.labor:
            raise ValueError("layer_dependency: needs labor")
        if self.labor and (self.replace or self.last):
            other = "replace" if self.replace else "temporal_strategy"
            raise ValueError(f"labor: not with {other}; its draws are of nodes, once in a hop")
        for edge_type, name in self.weights.items():
            table = store.edge_table(name, edge_type)
            _check_column("weights", name, table, _WEIGHT_DTYPES)
            _check_weights(edge_type, table)
        for node_type, name in self.node_time.items():
            _check_column("node_time", name, store.node_table(name, node_type), _TIME_DTYPES)
        for edge_type, name in self.edge_time.items():
            _check_column("edge_time", name, store.edge_table(name, edge_type), _TIME_DTYPES)

    def _windows(self, windows: TimeWindow | None) -> dict[NodeType | EdgeType, int]:
        timed: list[NodeType | EdgeType] = [*self.node_time, *self.edge_time]
        if windows is None:
            return {}
        if not timed:
            raise ValueError("time_window: needs node_time or edge_time")
        of_types = windows if isinstance(windows, Mapping) else dict.fromkeys(timed, windows)
        lengths = {}
        for key, value in of_types.items():
            if key not in timed:
                raise ValueError(f"time_window: {key!r} has no times, only {timed}")
            lengths[key] = as_integer("time_window", value)
            if not 0 <= lengths[key] <= _LONGEST_WINDOW:
                raise ValueError(f"time_window: expected 0 .. 2**63 - 1, got {value}")
        return lengths

    @property
    def reads_edges(self) -> bool:
        """Whether sampling looks up values of edges by their ids."""
        return bool(self.weights or self.edge_time)

    def times(self, store: Store, edge_type: EdgeType) -> Table | None:
        """Returns the table by which a relation's neighbours are admitted; None if all are."""
        if edge_type[0] in self.node_time:
            return store.node_table(self.node_time[edge_type[0]], edge_type[0])
        if edge_type in self.edge_time:
            return store.edge_table(self.edge_time[edge_type], edge_type)
        return None

    def native(self, store: Store, edge_type: EdgeType) -> _C.Choice:
        """Converts the options of one relation for the compiled sampler."""
        weights, times = None, self.times(store, edge_type)
        if edge_type in self.weights:
            weights = store.edge_table(self.weights[edge_type], edge_type)
        timed_type = edge_type if self.edge_time else edge_type[0]
        return _C.Choice(
            replace=self.replace,
            last=self.last and times is not None,
            weights=_C.TableView() if weights is None else weights.view,
            weight_bytes=0 if weights is None else weights.dtype.itemsize,
            times=_C.TableView() if times is None else times.view,
            time_bytes=0 if times is None else times.dtype.itemsize,
            edge_time=bool(self.edge_time),
            window=self.time_window.get(timed_type, -1),
            per_source=self.labor,
            layer_dependency=self.layer_dependency,
            skip_zero_weights=self.skip_zero_weights,
        )

    def seed_times(
        self,
        store: Store,
        seeds: Sequence[tuple[NodeType, Tensor]],
        seed_time: Tensor | Mapping[NodeType, Tensor] | None,
        seed_start: Tensor | Mapping[NodeType, Tensor] | None,
        device: torch.device,
    ) -> SeedTimes:
        """Returns the latest and the earliest times that the seeds of all types admit."""
        if not self.timed:
            for name, times in (("seed_time", seed_time), ("seed_start", seed_start)):
                if times is not None:
                    raise ValueError(f"{name}: the sampler has neither node_time nor edge_time")
            return SeedTimes()
        latest = _times_by_type("seed_time", seed_time, seeds)
        if latest is None:
            latest = [self._times_in_store(store, node_type, ids) for node_type, ids in seeds]
        earliest = _times_by_type("seed_start", seed_start, seeds)
        none = torch.empty(0, dtype=torch.int64, device=device)

        def joined(times: list[Tensor]) -> Tensor:
            return torch.cat([none, *(t.to(device, torch.int64) for t in times)])

        return SeedTimes(joined(latest), None if earliest is None else joined(earliest))

    def _times_in_store(self, store: Store, node_type: NodeType, ids: Tensor) -> Tensor:
        if node_type not in self.node_time:
            raise ValueError(
                f"seed_time: needed, for seeds of type {node_type!r} have no node_time"
            )
        if store.num_nodes(node_type) == 0:
            return torch.zeros_like(ids)
        # The sampler reports seeds that are no nodes.
        in_range = ids.clamp(0, store.num_nodes(node_type) - 1)
        return store.node_table(self.node_time[node_type], node_type).gather(in_range).reshape(-1)


def _names(
    option: str,
    names_of_tables: str | Mapping[Type, str] | None,
    types: Sequence[Type],
    names_of: Callable[[Type], list[str]],
) -> dict[Type, str]:
    """Returns the names of the tables that an option means, by type."""
    if names_of_tables is None:
        return {}
    tables = {t: names_of(t) for t in types}
    if isinstance(names_of_tables, str):
        of_types = {t: names_of_tables for t, names in tables.items() if names_of_tables in names}
        if not of_types:
            raise ValueError(
                f"{option}: no type has a table {names_of_tables!r}, there are {tables}"
            )
        return of_types
    if not isinstance(names_of_tables, Mapping):
        raise TypeError(f"{option}: expected a name or a dict of names, got {names_of_tables!r}")
    for key, name in names_of_tables.items():
        if key not in tables:
            raise ValueError(f"{option}: {key!r} is not one of {list(tables)}")
        if name not in tables[key]:
            raise ValueError(f"{option}: {key!r} has no table {name!r}, only {tables[key]}")
    return dict(names_of_tables)


def _check_column(option: str, name: str, table: Table, dtypes: tuple[torch.dtype, ...]) -> None:
    if table.dtype not in dtypes:
        raise TypeError(f"{option}: expected {name!r} to be one of {dtypes}, got {table.dtype}")
    if tuple(table.shape[1:]) not in ((), (1,)):
        raise ValueError(f"{option}: expected {name!r} to have one column, got {table.shape}")


def _check_weights(edge_type: EdgeType, table: Table) -> None:
    """Checks all values of a table, once for each table."""
    if table in _valid_weights:
        return
    for begin in range(0, table.shape[0], _CHECK_ROWS):
        end = min(begin + _CHECK_ROWS, table.shape[0])
        values = table.gather(torch.arange(begin, end, device=table.device)).reshape(-1)
        bad = ~((values >= 0) & values.isfinite())
        if bool(bad.any()):
            first = int(bad.int().argmax())
            raise ValueError(
                f"weights: expected finite values of at least 0, "
                f"got {float(values[first])} for edge {begin + first} of {edge_type}"
            )
    _valid_weights.add(table)


def _times_by_type(
    name: str,
    times: Tensor | Mapping[NodeType, Tensor] | None,
    seeds: Sequence[tuple[NodeType, Tensor]],
) -> list[Tensor] | None:
    """Returns the times of the seeds of each type."""
    if times is None:
        return None
    if isinstance(times, Tensor):
        if len(seeds) != 1:
            raise ValueError(f"{name}: expected a dict by node type, as the seeds are")
        times = {seeds[0][0]: times}
    elif not isinstance(times, Mapping):
        raise TypeError(f"{name}: expected a tensor or a dict of tensors, got {type(times)}")
    if set(times) != {node_type for node_type, _ in seeds}:
        raise ValueError(f"{name}: expected the node types of the seeds, got {list(times)}")
    return [_check_times(name, times[node_type], ids.numel()) for node_type, ids in seeds]


def _check_times(name: str, times: Tensor, count: int) -> Tensor:
    times = check_integer_tensor(name, times)
    if tuple(times.shape) != (count,):
        raise ValueError(f"{name}: expected shape ({count},), got {tuple(times.shape)}")
    return times
