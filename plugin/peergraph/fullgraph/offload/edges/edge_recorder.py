"""Functions on the edges to a chunk's destinations, recorded like functions of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.content_digest import PendingDigest
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.functions.gathering import in_graph, store_resident
from peergraph.fullgraph.offload.functions.recording import (
    probe_of,
    resident_operand,
    resident_probe,
)
from peergraph.fullgraph.offload.gradients.segment import (
    is_boundary,
    make_boundary,
    row_operand,
    with_history,
)
from peergraph.fullgraph.offload.programs.program import WHOLE_RESULT, Compiled, Place, SourceRows
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Operand,
    PlainOperand,
    Record,
    RowOperand,
    SourceOperand,
)
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Content,
    OffloadedTensor,
    from_store,
    make_probe,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.operations import (
    Operation,
    Operations,
    Slot,
    TorchModes,
    UncacheableArgumentError,
    key_of_function,
)
from peergraph.fullgraph.offload.tensor.row_space import RowSpace, RowSpaces
from peergraph.fullgraph.structure.edge_call import EdgeCall, Operands
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows, partitioned
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor

Function = Callable[..., Tensor]


class EdgeFunction:
    """A function on edges as a call that is recorded.

    Args:
        function: called with a :class:`peergraph.aggregate.Csc` and plain rows by name.
        names: of the rows.
        space: of the result's rows; None: the rows of sources, a plain tensor.
    """

    def __init__(self, function: Function, names: Sequence[str], space: RowSpace | None) -> None:
        self.__name__ = getattr(function, "__name__", "a function on edges")
        self.function = function
        self.names = tuple(names)
        self.space = space

    def __call__(self, edges: SourceRows | None, *operands: Any) -> Tensor:
        """As :meth:`run_on_rows`, with rows as a partitioned tensor."""
        rows: Tensor = partitioned(self.run_on_rows(edges, *operands))
        return rows

    def run_on_rows(self, edges: SourceRows | None, *operands: Any) -> Any:
        """Runs the function on a chunk; returns :class:`ChunkRows`, or plain rows of the sources.

        Args:
            edges: the edges; None: those that come with rows of sources.
            operands: by name; None is passed on.
        """
        if edges is None:
            edges = next(part for part in operands if isinstance(part, SourceRows))
        rows = {name: _plain(part) for name, part in zip(self.names, operands, strict=True)}
        result = self.function(edges.csc, **rows)
        if self.space is None:
            return result
        return ChunkRows(result, edges.place.row_layout(self.space))


def _plain(value: Any) -> Any:
    if isinstance(value, SourceRows):
        return value.rows
    if type(value) is ChunkRows:
        return value.rows
    return value.to_local() if isinstance(value, PartitionedTensor) else value


class EdgeRecorder:
    """Records functions on the edges of one structure.

    Args:
        spaces: of the graph.
        structure: the edges.
        stores_results: whether results are stored before others are computed from them, since the
            chunks of `structure` are not those of a structure of nodes.
    """

    def __init__(
        self, spaces: RowSpaces, structure: ChunkedCsc, *, stores_results: bool = False
    ) -> None:
        self.spaces = spaces
        self.structure = structure
        self.stores_results = stores_results
        self.destinations = spaces.add(structure.destination_layout, structure.chunks)
        self.edges = spaces.add(structure.edge_layout, structure.edge_chunks)
        self._probe_csc: Csc | None = None
        self._operations = Operations()
        self._reversed_weights: MutableMapping[Tensor, Any] = WeakIdKeyDictionary()
        self._reversed: MutableMapping[ChunkedCsc, EdgeRecorder] = WeakKeyDictionary()

    @property
    def sources(self) -> RowSpace:
        """The rows of sources."""
        space = self.spaces.find(self.structure.source_layout)
        if space is None:
            raise ValueError(f"the rows of sources, {self.structure.source_layout}, have no chunks")
        return space

    def space_of(self, layout: RowLayout) -> RowSpace:
        """Returns the rows of a layout; of a selection of destinations or edges in their chunks."""
        space = self.spaces.find(layout)
        if space is None:
            parent = None if layout.parent is None else self.spaces.find(layout.parent)
            if parent is None or layout.by_ids or layout.parent_rows is None:
                raise NotImplementedError(
                    f"a function on edges with rows selected by ids ({layout}) over an offloaded "
                    "graph: select them by a mask"
                )
            space = self.spaces.add(layout, parent.chunks.select(layout))
        return space

    def reversed(self, structure: ChunkedCsc | None = None) -> EdgeRecorder:
        """Returns the recorder of the reversed edges. Collective at the first call.

        Kept for as long as `structure` lives.

        Args:
            structure: some of the edges, such as those to selected destinations; None: all edges.
        """
        structure = self.structure if structure is None else structure
        recorder = self._reversed.get(structure)
        if recorder is None:
            recorder = EdgeRecorder(
                self.spaces,
                structure.reversed(self.sources.chunks),
                stores_results=self.stores_results,
            )
            self._reversed[structure] = recorder
        return recorder

    def reversed_weights(
        self, weights: PartitionedTensor, digest: PendingDigest | None = None
    ) -> PartitionedTensor:
        """Returns rows of edges on the device as rows of the reversed edges. Collective.

        Kept for as long as `weights` live with the same values.

        Args:
            weights: the rows.
            digest: of this rank's rows; None: it is made, which synchronises.
        """
        value = (digest or PendingDigest(weights._local)).value()
        entry = self._reversed_weights.get(weights)
        if any(self.spaces.rank.real.all_gather(entry is None or entry[0] != value)):
            entry = self._reversed_weights[weights] = value, reverse_rows(self.structure, weights)
        assert entry is not None
        rows: PartitionedTensor = entry[1]
        return rows

    def record(self, call: EdgeCall) -> tuple[Content, bool]:
        """Returns the recorded result of a call, and whether it needs gradients.

        Rows of sources are to be summed.
        """
        space = self._result_space(call)
        entered: list[tuple[Tensor | None, Operand, Callable[[], Any]]] = []
        slots: dict[str, Slot | None] = {}

        def enter(
            operands: Operands,
            describe: Callable[[str, Tensor], tuple[Operand, Callable[[], Any]]],
        ) -> None:
            for name, x in operands.items():
                slots[name] = None if x is None else Slot(len(entered))
                if x is not None:
                    entered.append((x, *describe(name, x)))

        share_history(call.sources, call.destinations, self)
        enter(call.sources, lambda _, x: self._source(x))
        edges_slot = None
        if not entered or space is None:
            edges_slot = Slot(len(entered))
            edges = EdgesOperand(self.structure, in_window=space is None)
            entered.append(
                (None, edges, lambda: SourceRows(None, self._csc_of_probes(), _ProbePlace()))
            )
        enter(call.destinations, lambda name, x: _rows(name, x, self.destinations))
        enter(call.edges, lambda name, x: _rows(name, x, self.edges))
        enter(call.others, lambda name, x: _rows(name, x, self.space_of(_layout_of(x))))
        enter(call.parameters, lambda _, x: (PlainOperand.of(x), lambda: x))
        operation = self._operation(call.function, slots, edges_slot, space)
        recorded = Record(operation, [operand for _, operand, _ in entered])
        probe: Tensor | None = None
        if call.row_type is None:
            probes = [make() for _, _, make in entered]
            arguments: list[Any] = [
                probes[part.place] if type(part) is Slot else part for part in operation.args
            ]
            with self.destinations.rank.recording_seeds() as seeds:
                result = operation.func(*arguments)
            if seeds:
                raise NotImplementedError(
                    f"{operation.func.__name__}: random numbers within a function on edges of an "
                    "offloaded graph"
                )
            needs_grad = result.requires_grad
            shape, dtype = result.shape[1:], result.dtype
            probe = result.detach() if space is not None else None
        else:
            shape, dtype = torch.Size(call.row_type[0]), call.row_type[1]
            needs_grad = torch.is_grad_enabled() and any(
                x is not None and x.requires_grad for x, _, _ in entered
            )
        if probe is None:
            probe = make_probe(self.destinations if space is None else space, shape, dtype)
        assert isinstance(probe, PartitionedTensor)
        if space is None:  # the record's whole result is added to rows of sources
            content = Content(self.destinations, probe, record=recorded, output=WHOLE_RESULT)
        else:
            content = Content(space, probe, record=recorded)
            content.must_store = self.stores_results
        return content, needs_grad

    def _result_space(self, call: EdgeCall) -> RowSpace | None:
        """Returns the space of the rows of a result; None: rows of sources."""
        if isinstance(call.result, RowLayout):
            return self.space_of(call.result)
        return {"source": None, "destination": self.destinations, "edge": self.edges}[call.result]

    def _operation(
        self,
        function: Function,
        slots: dict[str, Slot | None],
        edges_slot: Slot | None,
        space: RowSpace | None,
    ) -> Operation:
        """Returns the call of a function; the same for functions that do the same."""
        args = (edges_slot, *slots.values())
        modes = TorchModes.current(self.destinations.rank.device)
        call = EdgeFunction(function, tuple(slots), space)
        try:
            function_key = key_of_function(function)
        except UncacheableArgumentError:
            return Operation(call, args, {}, modes)
        # Spaces that results have are kept with the structure.
        key = function_key, call.names, args, modes, space
        return self._operations.share(key, call, args, {}, modes)

    def tensor(self, content: Content, needs_grad: bool, *, keep: bool) -> OffloadedTensor:
        """Returns the tensor of a record.

        Args:
            content: the record.
            needs_grad: whether gradients flow through it.
            keep: store the rows when they are first computed, for the backward pass.
        """
        result: OffloadedTensor = with_history(content) if needs_grad else make_shell(content)
        # Not before: rows that are kept have a history of their own.
        content.keeps = keep and torch.is_grad_enabled()
        content.gradient_in_order = True  # by the pass that differentiates the function
        if keep:
            # Functions of the rows do not go through the record.
            result._cell.needs_grad = False
        return result

    def _source(self, x: Tensor) -> tuple[Operand, Callable[[], SourceRows]]:
        """Returns rows of sources, which are stored before they are read, and their probe."""
        space = self.sources
        if not isinstance(x, OffloadedTensor):
            assert isinstance(x, PartitionedTensor)
            x = store_resident(space, x)
        own: OffloadedTensor = in_graph(x, space)
        operand = SourceOperand(make_boundary(own), self.structure)
        content = operand.rows.content
        content.is_source = True
        shape = min(2, space.row_layout.size), *content.features

        def make_probe() -> SourceRows:
            rows = torch.zeros(shape, dtype=content.dtype, device=space.rank.device)
            rows.requires_grad_(x.requires_grad)
            return SourceRows(rows, self._csc_of_probes(), _ProbePlace())

        return operand, make_probe

    def _csc_of_probes(self) -> Csc:
        if self._probe_csc is None:
            sources = min(2, self.sources.row_layout.size)
            rows = self.destinations.probe.local_count
            edges = self.edges.probe.local_count
            places = torch.arange(edges, device=self.destinations.rank.device)
            ids = (places % max(sources, 1)).int()
            self._probe_csc = Csc.from_coo(ids, places.clamp(max=rows - 1).int(), rows, sources)
        return self._probe_csc


def reverse_rows(structure: ChunkedCsc, edges: PartitionedTensor) -> PartitionedTensor:
    """Returns rows of edges on the device as rows of the reversed edges. Collective."""
    rows = structure.reverse_edge_rows(edges._local)
    return from_local(rows, structure.reversed().edge_layout)


def share_history(sources: Operands, destinations: Operands, recorder: EdgeRecorder) -> None:
    """Gives operands that are to be stored one node, so that one pass computes their gradients.

    These are sources, and rows of destinations that are much narrower than what they are computed
    from, where both are computed from rows of the same nodes.
    """
    rows = [
        x
        for _, x in _present(sources)
        if isinstance(x, OffloadedTensor) and x._content.store is None
    ]
    if rows and recorder.sources is recorder.destinations:
        for _, x in _present(destinations):
            if isinstance(x, OffloadedTensor) and _pays_to_store(x):
                x._content.must_store = True
                rows.append(x)
    parts = [x for x in rows if x._cell.needs_grad and row_operand(x).identity is None]
    if len(parts) > 1:
        shared = with_history(*(x._content for x in parts))
        for x, identity in zip(parts, shared, strict=True):
            x._cell.identity = identity


def keep_rows(x: OffloadedTensor) -> None:
    """Has rows stored when they are first computed, for all epochs.

    Rows of sources that must be stored to compute them are marked as temporary.
    """
    for operand in Compiled([row_operand(x)], is_boundary).operands:
        if isinstance(operand, SourceOperand) and operand.rows.content.store is None:
            operand.rows.content.is_temporary = True
    x._content.keeps = True


def _pays_to_store(x: OffloadedTensor) -> bool:
    """Whether rows are at most a quarter of those that they are computed from."""
    content = x._content
    if content.store is not None or not content.is_storable or content.keeps:
        return False
    read = Compiled([row_operand(x)], is_boundary).operands
    contents = {id(part.content): part.content for part in read if isinstance(part, RowOperand)}
    return 4 * content.row_bytes <= sum(part.row_bytes for part in contents.values())


def _layout_of(x: Tensor) -> RowLayout:
    assert isinstance(x, PartitionedTensor)
    return x.row_layout


def _present(operands: Operands) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in operands.items() if value is not None)


class _ProbePlace(Place):
    def __init__(self) -> None:
        super().__init__(-1)

    def row_layout(self, space: RowSpace) -> RowLayout:
        return space.probe


def _rows(name: str, x: Tensor, space: RowSpace) -> tuple[Operand, Callable[[], Any]]:
    if isinstance(x, OffloadedTensor):
        own: OffloadedTensor = in_graph(x, space)
        return row_operand(own), lambda: probe_of(own)
    assert isinstance(x, PartitionedTensor)
    operand, layout = resident_operand(name, x, space)
    return operand, lambda: resident_probe(operand.tensor, layout)


def selected_source(spaces: RowSpaces, structure: ChunkedCsc, rows: Tensor) -> OffloadedTensor:
    """Returns the selected rows of this rank, on the device, as rows of destinations."""
    space = spaces.add(structure.destination_layout, structure.chunks)
    store = spaces.allocator.allocate(
        space.row_layout, rows.shape[1:], rows.dtype, "source", what="labelled gradient"
    )
    store.write(0, rows)
    return from_store(space, store)
