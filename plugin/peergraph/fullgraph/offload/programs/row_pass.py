"""Passes over all chunks that compute rows, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass, PassChunk
from peergraph.fullgraph.offload.programs.program import Compiled, Place, SourceRows, no_autograd
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Operand,
    PlainOperand,
    ResidentOperand,
    RowOperand,
    SourceOperand,
    UnchangedCheck,
    require_unchanged,
)
from peergraph.fullgraph.offload.programs.selected_rows import (
    SelectedOperand,
    SelectedPlace,
    Selection,
)
from peergraph.fullgraph.offload.rows.row_allocator import Role
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Content
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.memory.device.default_machine import WORK

Visit = Callable[[PassChunk, Place, list[Any]], None]
GradientStore = tuple[RowStore, Any]


class RowPass:
    """Computes rows chunk by chunk; stores those of aggregations that are to be kept.

    Rows of sources are stored before, by passes of their own.

    Args:
        space: the rows that are visited.
        roots: the rows that are computed.
        selection: the rows of `space` to visit; nothing is kept then. None: all rows.
        waiting_bytes: of rows that are to be stored after this pass, before its rows are read.
    """

    def __init__(
        self,
        space: RowSpace,
        roots: Sequence[RowOperand],
        selection: Selection | None = None,
        waiting_bytes: int = 0,
    ) -> None:
        self.space = space
        self.selection = selection
        self._waiting_bytes = waiting_bytes
        store_sources(roots)
        self.compiled = Compiled(roots, is_stored)
        self.outputs = self.compiled.recipe.outputs
        """The slot of each root among the values that are visited."""

    def run(
        self,
        visit: Visit,
        *,
        operands: Sequence[Operand] = (),
        writes: Sequence[RowStore] = (),
        gradients: Sequence[GradientStore] = (),
    ) -> None:
        """Makes the pass. Collective.

        Args:
            visit: called for each chunk with the chunk, its place and the values by slot; those of
                roots are there.
            operands: further operands that `visit` takes: see :func:`value_at`.
            writes: stores that `visit` writes: see :func:`write_rows`.
            gradients: stores to which `visit` adds gradients of sources.
        """
        selection = self.selection
        sums = [] if selection is not None else self._sums_to_store(writes)
        caches = [
            (self.compiled.slot_of(content), allocate(content, "sequential")) for content in sums
        ]
        reads, sources = _stores([*self.compiled.operands, *operands], selection)
        structures = [structure for _, structure in (*sources, *gradients)]
        # Rows of edges are visited with the destinations of the edges.
        chunks = structures[0].chunks if structures else self.space.chunks
        chunks = chunks if selection is None else selection.chunks
        layout = chunks.row_layout
        written = [*writes, *(store for _, store in caches)]
        chunk_pass = ChunkPass(
            chunks,
            reads=[store for store in reads if store.row_layout is layout],
            sources=sources,
            writes=[store for store in written if store.row_layout is layout],
            gradients=gradients,
        )
        rank, recipe = self.space.rank, self.compiled.recipe
        last_uses = recipe.program.last_uses([*self.outputs, *(slot for slot, _ in caches)])
        with no_autograd(), chunk_pass:
            checks = [
                UnchangedCheck([*self.compiled.operands, *operands]),
                *self.space.spaces.checks,
            ]
            self.space.spaces.checks.clear()
            for chunk in chunk_pass:
                place = (
                    Place(chunk.index)
                    if selection is None
                    else SelectedPlace(chunk.index, selection)
                )
                values = recipe.run(
                    rank,
                    [value_at(part, chunk, place) for part in self.compiled.operands],
                    last_uses,
                )
                for content, (slot, store) in zip(sums, caches, strict=True):
                    write_rows(chunk, content, store, values[slot].to_local())
                visit(chunk, place, values)
                del values  # before those of the next chunk are made
        require_unchanged(checks, rank.real)
        for content, (_, store) in zip(sums, caches, strict=True):
            self._trace_sum(content, store)
            content.set_store(store)

    def _trace_sum(self, content: Content, store: RowStore) -> None:
        """Tells the trace of sums that can be computed again, where there is one."""
        trace = content.space.allocator.trace
        if trace is None or not _is_summable_again(content) or content.record is None:
            return
        summed = [operand.rows.content.store for operand in _summed(content)]
        operands = content.record.operands
        read = [part.content.store for part in operands if isinstance(part, RowOperand)]
        if None not in (*summed, *read):
            trace.add_sum(store, summed, read)

    def _sums_to_store(self, writes: Sequence[RowStore]) -> list[Content]:
        """Returns the aggregated rows that are stored, the same on all ranks.

        Sums that would go to the host are not: the backward pass computes them again if their
        sources can stay on the device until then.

        Args:
            writes: stores of the pass.
        """
        sums = [content for content in self.compiled.contents if content.keeps]
        again = [self._can_sum_again(content, writes) for content in sums]
        group = self.space.rank.real
        if sums and group.world_size > 1:
            with group.collective("choice of sums that are computed again"):
                by_rank = group.all_gather(again)
            again = [all(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
        return [content for content, can in zip(sums, again, strict=True) if not can]

    def _can_sum_again(self, content: Content, writes: Sequence[RowStore]) -> bool:
        """Returns whether the device has room for the sources of a sum until the backward pass."""
        stores = content.space.allocator
        sum_bytes = content.row_layout.local_count * content.row_bytes
        if stores.has_device_room(sum_bytes) or not _is_summable_again(content):
            return False
        left = stores.use["device"].left
        # The gradient of the sums takes the memory that the pass writes, which is free by then.
        written = sum(store.num_bytes for store in writes if store.in_place)
        return sum_bytes <= left + written and self._waiting_bytes <= left


def _summed(content: Content) -> list[SourceOperand]:
    """Returns the rows of sources that recorded rows are the sums of."""
    assert content.record is not None
    return [part for part in content.record.operands if isinstance(part, SourceOperand)]


def _is_summable_again(content: Content) -> bool:
    """Returns whether the backward pass could compute a sum again from rows on the device."""
    sources, num_sums = _summed(content), content.row_layout.local_count
    return bool(sources) and all(
        # Sums of features without gradients are kept for all epochs.
        source.rows.identity is not None
        and source.rows.identity.requires_grad
        and source.rows.content.is_on_device
        and source.structure.edge_layout.local_count <= WORK.summed_edges * num_sums
        for source in sources
    )


def is_stored(operand: RowOperand) -> bool:
    """Whether the rows are in a store."""
    return operand.content.store is not None


def write_rows(chunk: PassChunk, content: Content, store: RowStore, rows: Tensor) -> None:
    """Writes a chunk's rows of a content to its store, in a pass over these or other rows."""
    if store.row_layout is chunk.chunks.row_layout:
        chunk.write(store, rows)
    else:
        store.write(content.space.chunks.range(chunk.index)[0], rows)


def value_at(operand: Operand, chunk: PassChunk, place: Place) -> Any:
    """Returns what an operand is for a chunk of a pass, without gradients."""
    if isinstance(operand, RowOperand):
        content = operand.content
        store = content.store
        assert store is not None
        if isinstance(place, SelectedPlace):
            local_rows = place.selection.local_rows(content.space, chunk.index)
            rows = store.gather(local_rows)
            chunk.count_gathered(store, len(local_rows))
        elif store.row_layout is chunk.chunks.row_layout:
            rows = chunk.rows(store)
        else:
            rows = store.read(*content.space.chunks.range(chunk.index))
        return ChunkRows(rows, place.row_layout(content.space))
    if isinstance(operand, SourceOperand):
        store = operand.rows.content.store
        assert store is not None
        return SourceRows(*chunk.sources(store, structure_at(operand, place)), place)
    if isinstance(operand, EdgesOperand):
        structure = structure_at(operand, place)
        csc = chunk.csc(structure) if operand.in_window else structure.whole(chunk.index)
        return SourceRows(None, csc, place)
    if isinstance(operand, ResidentOperand):
        return place.resident_rows(operand)
    if isinstance(operand, SelectedOperand):
        return operand.value(place)
    assert isinstance(operand, PlainOperand)
    return operand.values


def structure_at(operand: SourceOperand | EdgesOperand, place: Place) -> Any:
    """Returns the edges to the rows of a place."""
    if isinstance(place, SelectedPlace):
        return place.selection.structure(operand.structure)
    return operand.structure


def allocate(content: Content, role: Role) -> RowStore:
    """Returns a store for the rows of a content."""
    return content.space.allocator.allocate(
        content.space.row_layout,
        content.features,
        content.dtype,
        role,
        narrow=True,
        what=_describe(content),
    )


def _describe(content: Content) -> str:
    """Returns what recorded rows are called."""
    if content.keeps:
        return "sum"
    if content.is_source:
        return "source rows"
    function = None if content.record is None else content.record.operation.func
    return getattr(function, "__name__", "rows")


def store_sources(roots: Sequence[RowOperand], waiting_bytes: int = 0) -> None:
    """Stores rows that the computation of `roots` reads from stores. Collective.

    These are the rows of all sources, and rows that must be stored. `waiting_bytes` as of
    :class:`RowPass`.
    """
    while first := _stored_first(roots):
        # Rows that others need are stored with these. They may go with them, so nothing here
        # refers to them any longer.
        inner = {id(rows.content) for rows in _stored_first(first)}
        first = [rows for rows in first if id(rows.content) not in inner]
        store_rows(first, waiting_bytes)


def _stored_first(roots: Sequence[RowOperand]) -> list[RowOperand]:
    """Returns the rows that are stored before `roots` are computed."""
    first: list[RowOperand] = []
    visited: set[int] = set()
    pending: list[Operand] = list(roots)
    while pending:
        operand = pending.pop()
        rows = operand.rows if isinstance(operand, SourceOperand) else operand
        if not isinstance(rows, RowOperand) or rows.content.store is not None:
            continue
        if rows is not operand or (rows.content.must_store and rows not in roots):
            first.append(rows)
            continue
        record = rows.content.record
        assert record is not None
        if id(record) not in visited:
            visited.add(id(record))
            pending.extend(record.operands)
    return first


def store_required(roots: Sequence[RowOperand]) -> None:
    """Stores those of the rows of a pass that must be stored. Collective."""
    store_rows([root for root in roots if root.content.must_store and root.content.store is None])


def store_rows(operands: Sequence[RowOperand], waiting_bytes: int = 0) -> None:
    """Stores rows, in one pass for all rows of the same nodes. Collective.

    `waiting_bytes` as of :class:`RowPass`.
    """
    by_space: dict[int, dict[int, RowOperand]] = {}
    for operand in operands:
        if not operand.content.is_storable:
            raise NotImplementedError(
                f"rows of an offloaded tensor of shape {tuple(operand.content.probe.shape)} "
                "cannot be stored: nodes must be the first dimension, each a row"
            )
        space = by_space.setdefault(id(operand.content.space), {})
        space[id(operand.content)] = operand
    for group in by_space.values():
        of_group = list(group.values())
        rows = of_group[0].content.row_layout.local_count
        store_sources(of_group, waiting_bytes + rows * sum(r.content.row_bytes for r in of_group))
        # Some may have been stored on the way to others.
        roots = [root for root in of_group if root.content.store is None]
        if roots:
            _store_together(roots, waiting_bytes)


def _store_together(roots: list[RowOperand], waiting_bytes: int) -> None:
    for root in roots:
        root.content.keeps = False
    row_pass = RowPass(roots[0].content.space, roots, waiting_bytes=waiting_bytes)
    stores = [allocate(root.content, _role_of(root.content)) for root in roots]
    parts = list(zip(roots, row_pass.outputs, stores, strict=True))

    def write(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        for root, slot, store in parts:
            write_rows(chunk, root.content, store, values[slot].to_local())

    row_pass.run(write, writes=stores)
    for root, store in zip(roots, stores, strict=True):
        root.content.set_store(store)


def _role_of(content: Content) -> Role:
    """Returns the role of a content's rows, by which the allocator chooses their tier."""
    if content.is_temporary:
        # The sum that is kept of them is read in each epoch, so it must find room on the device.
        rows = content.row_layout.local_count
        fits = content.space.allocator.has_device_room(2 * rows * content.row_bytes)
        return "source" if fits else "given"
    return "sequential" if content.must_store and not content.is_source else "source"


def _stores(
    operands: Sequence[Operand], selection: Selection | None
) -> tuple[list[RowStore], list[GradientStore]]:
    """Returns the stores that a pass reads by chunk, and those that it reads by source."""
    reads: dict[int, RowStore] = {}
    sources: dict[tuple[int, int], GradientStore] = {}
    for operand in operands:
        if isinstance(operand, RowOperand):
            store = operand.content.store
            if store is not None and selection is None:
                reads[id(store)] = store
        elif isinstance(operand, SourceOperand):
            store = operand.rows.content.store
            assert store is not None
            structure = operand.structure
            if selection is not None:
                structure = selection.structure(structure)
            sources[id(store), id(structure)] = store, structure
        elif isinstance(operand, EdgesOperand) and selection is not None:
            selection.structure(operand.structure)  # made by all ranks before the pass
    return list(reads.values()), list(sources.values())
