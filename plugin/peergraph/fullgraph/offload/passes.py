"""Passes over all chunks that compute rows, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from peergraph.fullgraph.offload.chunk_pass import ChunkPass, PassChunk
from peergraph.fullgraph.offload.offloaded_tensor import Content
from peergraph.fullgraph.offload.records import (
    EdgesOperand,
    Operand,
    PlainOperand,
    ResidentOperand,
    RowOperand,
    SourceOperand,
)
from peergraph.fullgraph.offload.replay import Compiled, Place, SourceRows, no_autograd
from peergraph.fullgraph.offload.row_store import RowStore
from peergraph.fullgraph.offload.selected_rows import (
    SelectedOperand,
    SelectedPlace,
    Selection,
)
from peergraph.fullgraph.offload.virtual_rank import RowSpace
from peergraph.fullgraph.tensor.partitioned_tensor import wrap

Visit = Callable[[PassChunk, Place, list[Any]], None]
GradientStore = tuple[RowStore, Any]


class RowPass:
    """Computes rows chunk by chunk; stores those of aggregations that are to be kept.

    Rows of sources are stored before, by passes of their own.

    Args:
        space: the rows that are visited.
        roots: the rows that are computed.
        selection: the rows of `space` to visit; None: all. Then nothing is kept.
    """

    def __init__(
        self, space: RowSpace, roots: Sequence[RowOperand], selection: Selection | None = None
    ) -> None:
        self.space = space
        self.selection = selection
        store_sources(roots)
        self.compiled = Compiled(roots, is_stored)
        self.outputs = self.compiled.outputs
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
        kept = [c for c in self.compiled.contents if c.keeps and selection is None]
        caches = [
            (self.compiled.slot_of(content), allocate(content, "sequential")) for content in kept
        ]
        reads, sources = _stores([*self.compiled.operands, *operands], selection)
        structures = [structure for _, structure in (*sources, *gradients)]
        # Rows of edges are visited with the destinations of the edges.
        chunks = structures[0].chunks if structures else self.space.chunks
        chunks = chunks if selection is None else selection.chunks
        layout = chunks.layout
        written = [*writes, *(store for _, store in caches)]
        chunk_pass = ChunkPass(
            chunks,
            reads=[store for store in reads if store.layout is layout],
            sources=sources,
            writes=[store for store in written if store.layout is layout],
            gradients=gradients,
        )
        rank, program = self.space.rank, self.compiled.program
        last_uses = program.last_uses([*self.outputs, *(slot for slot, _ in caches)])
        with no_autograd(), chunk_pass:
            for chunk in chunk_pass:
                place = (
                    Place(chunk.index)
                    if selection is None
                    else SelectedPlace(chunk.index, selection)
                )
                values = program.run(
                    rank,
                    [value_at(part, chunk, place) for part in self.compiled.operands],
                    last_uses,
                )
                for content, (slot, store) in zip(kept, caches, strict=True):
                    write_rows(chunk, content, store, values[slot]._local)
                visit(chunk, place, values)
                del values  # before those of the next chunk are made
        for content, (_, store) in zip(kept, caches, strict=True):
            content.set_store(store)


def is_stored(operand: RowOperand) -> bool:
    """Whether the rows are in a store."""
    return operand.content.store is not None


def write_rows(chunk: PassChunk, content: Content, store: RowStore, rows: Tensor) -> None:
    """Writes a chunk's rows of a content to its store.

    Args:
        chunk: of a pass, over the same chunks of these or of other rows.
        content: the rows.
        store: of all rows of `content`.
        rows: of the chunk.
    """
    if store.layout is chunk.chunks.layout:
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
            rows = store.gather(place.selection.local_rows(content.space, chunk.index))
        elif store.layout is chunk.chunks.layout:
            rows = chunk.rows(store)
        else:
            rows = store.read(*content.space.chunks.range(chunk.index))
        return wrap(rows, place.layout(content.space), 0)
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
    return operand.values()


def structure_at(operand: SourceOperand | EdgesOperand, place: Place) -> Any:
    """Returns the edges to the rows of a place."""
    if isinstance(place, SelectedPlace):
        return place.selection.structure(operand.structure)
    return operand.structure


def allocate(content: Content, role: Any) -> RowStore:
    """Returns a store for the rows of a content."""
    return content.space.stores.allocate(
        content.space.layout, content.features, content.dtype, role
    )


def store_sources(roots: Sequence[RowOperand]) -> None:
    """Stores rows that the computation of `roots` reads from stores. Collective.

    These are the rows of all sources, and those that are wanted in a store.
    """
    needed: list[RowOperand] = []
    seen: set[int] = set()
    pending: list[Operand] = list(roots)
    while pending:
        operand = pending.pop()
        rows = operand.rows if isinstance(operand, SourceOperand) else operand
        if not isinstance(rows, RowOperand) or rows.content.store is not None:
            continue
        if rows is not operand or (rows.content.wanted and rows not in roots):
            needed.append(rows)
            continue
        record = rows.content.record
        assert record is not None
        if id(record) not in seen:
            seen.add(id(record))
            pending.extend(record.operands)
    store_rows(needed)


def store_rows(operands: Sequence[RowOperand]) -> None:
    """Stores rows, in one pass for those of the same nodes. Collective."""
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
        found = list(group.values())
        store_sources(found)
        # Some may have been stored on the way to others.
        roots = [root for root in found if root.content.store is None]
        if roots:
            _store_together(roots)


def _store_together(roots: list[RowOperand]) -> None:
    for root in roots:
        root.content.keeps = False
    row_pass = RowPass(roots[0].content.space, roots)
    stores = [
        allocate(root.content, "sequential" if root.content.wanted else "source") for root in roots
    ]
    parts = list(zip(roots, row_pass.outputs, stores, strict=True))

    def write(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        for root, slot, store in parts:
            write_rows(chunk, root.content, store, values[slot]._local)

    row_pass.run(write, writes=stores)
    for root, store in zip(roots, stores, strict=True):
        root.content.set_store(store)


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
