"""A chunk of rows as a rank, so that rules of partitioned tensors compute on it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from peergraph.fullgraph.exchange.transport import ReduceOp, Transport
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks import Chunks
from peergraph.fullgraph.offload.row_stores import RowStores
from peergraph.fullgraph.random.seeds import Seed, draw_seeds_by, shared_seed
from peergraph.memory import Group

_PROBE_ROWS = 2

Reduce = Callable[[Tensor, ReduceOp], Tensor]


class NeedsOtherRowsError(NotImplementedError):
    """A function on the rows of a chunk asked for a collective: it needs the rows of others."""


class VirtualRank(Group):
    """The group of a chunk: rank 0 of two, of which the other has all other rows.

    It refuses collectives with NeedsOtherRowsError, but for reductions within :meth:`reducing`.
    Seeds of random operations are drawn as the real ranks draw them, or taken from a recording.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(0, 2, group.device, group.timeout)
        self.real = group
        """The ranks."""
        self._reduce: Reduce | None = None
        self._drawn: list[Seed] | None = []
        self._given: Iterator[Seed] = iter(())
        self._copies = WeakIdKeyDictionary()
        Transport.register(self, _VirtualTransport(self))
        draw_seeds_by(self, self._draw)

    @contextmanager
    def reducing(self, reduce: Reduce) -> Iterator[None]:
        """Within the context, all_reduce of a transport calls `reduce`."""
        before, self._reduce = self._reduce, reduce
        try:
            yield
        finally:
            self._reduce = before

    @contextmanager
    def knowing(self, known: Sequence[Tensor]) -> Iterator[None]:
        """Within the context, the first reductions have known results; later ones are as before.

        Args:
            known: results, in the order in which the reductions are asked for.
        """
        later, results = self._reduce, iter(known)

        def reduce(tensor: Tensor, op: ReduceOp) -> Tensor:
            found = next(results, None)
            if found is not None:
                return found.clone()
            if later is None:
                _refuse()
            return later(tensor, op)

        with self.reducing(reduce):
            yield

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        """Returns what the function of :meth:`reducing` makes of a tensor."""
        if self._reduce is None:
            _refuse()
        return self._reduce(tensor, op)

    @contextmanager
    def recording_seeds(self, known: Sequence[Seed] = ()) -> Iterator[list[Seed]]:
        """Within the context, seeds are drawn for all ranks; gives the list of them.

        Args:
            known: the first seeds, which are not drawn again.
        """
        drawn = list(known)
        with self._seeds(known, drawn):
            yield drawn

    @contextmanager
    def replaying(self, seeds: Sequence[Seed]) -> Iterator[None]:
        """Within the context, random operations get these seeds."""
        with self._seeds(seeds, None):
            yield

    @contextmanager
    def _seeds(self, given: Sequence[Seed], drawn: list[Seed] | None) -> Iterator[None]:
        before = self._given, self._drawn
        self._given, self._drawn = iter(given), drawn
        try:
            yield
        finally:
            self._given, self._drawn = before

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Returns a copy of a plain tensor; the same one until the tensor changes."""
        known = self._copies.get(tensor)  # type: ignore[no-untyped-call]
        if known is None or known[0] != tensor._version:
            known = tensor._version, tensor.detach().clone()
            self._copies[tensor] = known
        copy: Tensor = known[1]
        return copy

    def _draw(self, generator: torch.Generator | None) -> Seed:
        given = next(self._given, None)
        if given is not None:
            return given
        if self._drawn is None:
            raise RuntimeError("a recorded function draws more random numbers than at its record")
        seed = shared_seed(self.real, generator)
        self._drawn.append(seed)
        return seed

    def _exchange(self, name: str, value: bytes) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise NeedsOtherRowsError("the function needs rows of other chunks or ranks")


def partial_sum(tensor: Tensor, op: ReduceOp) -> Tensor:
    """The reduction in a backward pass over a chunk: the chunk's part of a parameter's gradient.

    The parts are added up over chunks and ranks afterwards.
    """
    if op != "sum" or not tensor.is_floating_point():
        _refuse()
    return tensor


def no_number(tensor: Tensor, op: ReduceOp) -> Tensor:
    """The reduction in a trial: NaN, which shows where results of reductions are used."""
    return torch.full_like(partial_sum(tensor, op), float("nan"))


class _VirtualTransport(Transport):
    """Collectives of a chunk: refused, but for reductions."""

    one_part_a_rank = False
    group: VirtualRank

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        return self.group.all_reduce(tensor, op)

    def all_gather_rows(self, rows: Tensor, counts: Sequence[int]) -> NoReturn:
        _refuse()

    def all_to_all(self, outputs: list[Tensor], inputs: list[Tensor]) -> NoReturn:
        _refuse()

    def start(self, outputs: Any, inputs: Any, slots: Any = None, selected: Any = None) -> NoReturn:
        _refuse()

    def broadcast(self, tensor: Tensor, src: int = 0) -> NoReturn:
        _refuse()


class RowSpace:
    """The rows of a layout as chunks, each with the layout of a virtual rank.

    Made by :meth:`RowSpaces.add`.
    """

    def __init__(self, spaces: RowSpaces, layout: RowLayout, chunks: Chunks) -> None:
        rank = spaces.rank
        self.spaces = spaces
        """All spaces of the graph."""
        self.layout = layout
        """The rows of all ranks."""
        self.chunks = chunks
        """How this rank's rows are cut."""
        self.stores = spaces.stores
        """Where rows are stored."""
        self.rank = rank
        """The virtual rank of all spaces."""
        rows = min(_PROBE_ROWS, layout.size)
        self.probe = self._virtual(rows, lambda: torch.arange(rows, device=rank.device))
        """A layout with few rows, for trial runs."""
        self._by_chunk: list[RowLayout | None] = [None] * chunks.count

    def chunk_layout(self, chunk: int) -> RowLayout:
        """Returns the layout in which the virtual rank has the rows of a chunk."""
        found = self._by_chunk[chunk]
        if found is None:
            start, stop = self.chunks.range(chunk)
            found = self._virtual(stop - start, lambda: self.layout.positions[start:stop])
            self._by_chunk[chunk] = found
        return found

    def rows_layout(self, local_rows: Tensor) -> RowLayout:
        """Returns the layout in which the virtual rank has some of the local rows."""
        return self._virtual(len(local_rows), lambda: self.layout.positions[local_rows])

    def real_layout(self, virtual: RowLayout) -> RowLayout:
        """Returns the layout of all ranks of a result whose layout is `virtual`.

        Raises:
            NeedsOtherRowsError: rows were selected or concatenated.
        """
        if virtual is self.probe:
            return self.layout
        if virtual.parent is None or virtual.parent_rows is not None:
            _refuse()
        parent = self.real_layout(virtual.parent)
        return parent.repeat(virtual.repeats) if virtual.repeats > 1 else parent.tile(virtual.tiles)

    def virtual_layout(self, base: RowLayout, layout: RowLayout) -> RowLayout:
        """Returns `layout`, which is made of the space's layout, as it is made of `base`."""
        if layout is self.layout:
            return base
        assert layout.parent is not None
        parent = self.virtual_layout(base, layout.parent)
        return parent.repeat(layout.repeats) if layout.repeats > 1 else parent.tile(layout.tiles)

    def _virtual(self, count: int, positions: Callable[[], Tensor]) -> RowLayout:
        counts = [count, self.layout.size - count]
        return RowLayout(self.rank, counts, positions)


class RowSpaces:
    """The row spaces of a graph on this rank, by layout.

    Args:
        stores: where rows are stored.
    """

    def __init__(self, stores: RowStores) -> None:
        self.stores = stores
        self.rank = VirtualRank(stores.group)
        # The graph, tensors and recorders keep spaces; layouts of selections come and go.
        self._by_layout: MutableMapping[RowLayout, RowSpace] = WeakValueDictionary()
        self.selections: OrderedDict[RowLayout, Any] = OrderedDict()
        """The last selections of rows, which go with the graph."""

    def add(self, layout: RowLayout, chunks: Chunks) -> RowSpace:
        """Returns the space of a layout, which lives as long as the caller keeps it."""
        space = self._by_layout.get(layout)
        if space is None:
            space = RowSpace(self, layout, chunks)
            self._by_layout[layout] = space
        return space

    def find(self, layout: RowLayout) -> RowSpace | None:
        """Returns the space of a layout, or None where its rows are not cut in chunks."""
        return self._by_layout.get(layout)
