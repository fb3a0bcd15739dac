"""Functions over the edges to a chunk's rows, recorded like functions of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.offloaded_tensor import (
    Content,
    OffloadedTensor,
    detached,
    from_store,
    make_shell,
)
from peergraph.fullgraph.offload.recording import (
    plain_operand,
    probe_of,
    record,
    resident_operand,
)
from peergraph.fullgraph.offload.records import (
    EdgesOperand,
    Modes,
    Operand,
    Record,
    RowOperand,
    Slot,
    SourceOperand,
)
from peergraph.fullgraph.offload.replay import Compiled, Place, SourceRows
from peergraph.fullgraph.offload.row_segment import (
    is_boundary,
    make_boundary,
    row_operand,
    with_history,
)
from peergraph.fullgraph.offload.virtual_rank import RowSpace, RowSpaces
from peergraph.fullgraph.structure.partitioned_structure import NONE, Operands
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


class EdgeFunction:
    """A function on edges, called with the edges to a chunk's rows.

    Args:
        function: called with a Csc, and by name with plain tensors.
        space: of the result's rows.
    """

    def __init__(self, function: Callable[..., Tensor], space: RowSpace) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", str(function))
        self.space = space

    def __call__(self, edges: SourceRows, **operands: Any) -> PartitionedTensor:
        """Returns the rows that the function computes for a chunk."""
        rows = {name: _local(operand) for name, operand in operands.items()}
        result = self.function(edges.csc, **rows)
        return from_local(result, edges.place.layout(self.space))


def _local(value: Any) -> Any:
    if isinstance(value, SourceRows):
        return value.rows
    return value.to_local() if isinstance(value, PartitionedTensor) else value


class EdgeRecorder:
    """Records functions on the edges of one structure.

    Args:
        spaces: of the graph.
        structure: the edges.
    """

    def __init__(self, spaces: RowSpaces, structure: ChunkedCsc) -> None:
        self.spaces = spaces
        self.structure = structure
        self.destinations = spaces.add(structure.destination_layout, structure.chunks)
        self.edges = spaces.add(structure.edge_layout, structure.edge_chunks)
        self._probe_csc: Csc | None = None

    @property
    def sources(self) -> RowSpace:
        """The rows of sources."""
        found = self.spaces.find(self.structure.source_layout)
        if found is None:
            raise ValueError(f"the rows of sources, {self.structure.source_layout}, have no chunks")
        return found

    def record(
        self,
        function: Callable[..., Tensor],
        *,
        sources: Operands = NONE,
        destinations: Operands = NONE,
        edges: Operands = NONE,
        parameters: Operands = NONE,
        by_edge: bool = False,
    ) -> tuple[Content, bool]:
        """Returns the recorded result of a function on edges, and whether it needs gradients.

        Args:
            function: called with a Csc, and by name with plain tensors.
            sources, destinations, edges: partitioned operands by name, with these rows.
            parameters: plain operands, equal on all ranks.
            by_edge: whether the result has a row for each edge, else for each destination.
        """
        call = EdgeFunction(function, self.edges if by_edge else self.destinations)
        csc = self._csc_of_probes()
        operands: list[Operand] = []
        probes: dict[str, Any] = {}

        def enter(name: str, operand: Operand, probe: Any) -> None:
            operands.append(operand)
            probes[name] = probe

        share_history(sources, destinations, self)
        for name, value in _present(sources):
            source = make_source_operand(self, value)
            enter(name, source, SourceRows(self._probe_of_sources(source, value), csc, PROBE_PLACE))
        if not operands:
            operands.append(EdgesOperand(self.structure))
        without_sources = isinstance(operands[0], EdgesOperand)
        for space, given in ((self.destinations, destinations), (self.edges, edges)):
            for name, value in _present(given):
                enter(name, *_row_operand(name, value, space))
        for name, value in _present(parameters):
            check_parameters((value,), self.destinations.rank.real)
            enter(name, plain_operand(value, self.destinations), value)
        missing = {
            name: None
            for given in (sources, destinations, edges, parameters)
            for name, value in given.items()
            if value is None
        }
        modes = Modes.current(self.destinations.rank.device)
        result = call(SourceRows(None, csc, PROBE_PLACE), **probes, **missing)
        slots = {name: Slot(i + without_sources) for i, name in enumerate(probes)}
        made = Record(call, (Slot(0),), {**slots, **missing}, operands, modes)
        content = Content(call.space, detached(result), record=made)
        return content, result.requires_grad

    def aggregated(self, content: Content, needs_grad: bool) -> OffloadedTensor:
        """Returns the tensor of aggregated rows; they are stored when they are first computed."""
        made: OffloadedTensor = with_history(content) if needs_grad else make_shell(content)
        content.keeps = torch.is_grad_enabled()
        # Functions of the rows do not go through the record.
        made._cell.needs_grad = False
        return made

    def by_edge(self, content: Content, needs_grad: bool) -> OffloadedTensor:
        """Returns the tensor of rows of edges, which are not stored."""
        made: OffloadedTensor = with_history(content) if needs_grad else make_shell(content)
        return made

    def _probe_of_sources(self, source: SourceOperand, x: Tensor) -> Tensor:
        content = source.rows.content
        rows = torch.zeros(
            (min(2, self.sources.layout.size), *content.features),
            dtype=content.dtype,
            device=self.destinations.rank.device,
        )
        return rows.requires_grad_(x.requires_grad)

    def _csc_of_probes(self) -> Csc:
        if self._probe_csc is None:
            sources = min(2, self.sources.layout.size)
            rows = self.destinations.probe.local_count
            edges = self.edges.probe.local_count
            places = torch.arange(edges, device=self.destinations.rank.device)
            ids = (places % max(sources, 1)).int()
            self._probe_csc = Csc.from_coo(ids, places.clamp(max=rows - 1).int(), rows, sources)
        return self._probe_csc


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
                x._content.wanted = True
                rows.append(x)
    parts = [x for x in rows if x._cell.needs_grad and row_operand(x).identity is None]
    if len(parts) > 1:
        shared = with_history(*(x._content for x in parts))
        for x, identity in zip(parts, shared, strict=True):
            x._cell.identity = identity


def _pays_to_store(x: OffloadedTensor) -> bool:
    """Whether rows are at most a quarter of those that they are computed from."""
    content = x._content
    if content.store is not None or not content.is_storable or content.keeps:
        return False
    read = Compiled([row_operand(x)], is_boundary).operands
    given = {id(part.content): part.content for part in read if isinstance(part, RowOperand)}
    return 4 * content.row_bytes <= sum(part.row_bytes for part in given.values())


def make_source_operand(recorder: EdgeRecorder, x: Tensor) -> SourceOperand:
    """Returns rows of sources, which are stored before they are read."""
    if not isinstance(x, OffloadedTensor):
        assert isinstance(x, PartitionedTensor)
        x = store_resident(recorder.sources, x)
    return SourceOperand(make_boundary(x), recorder.structure)


def _row_operand(name: str, value: Tensor, space: RowSpace) -> tuple[Operand, Any]:
    if isinstance(value, OffloadedTensor):
        return row_operand(value), probe_of(value)
    assert isinstance(value, PartitionedTensor)
    return resident_operand(name, value, space)


def _present(operands: Operands) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in operands.items() if value is not None)


class _ProbePlace(Place):
    def __init__(self) -> None:
        super().__init__(-1)

    def layout(self, space: RowSpace) -> RowLayout:
        return space.probe


PROBE_PLACE = _ProbePlace()
"""Where the destinations of a trial run are."""


def store_resident(space: RowSpace, x: PartitionedTensor) -> OffloadedTensor:
    """Returns rows that are on the device as an offloaded tensor. Differentiable."""
    result: OffloadedTensor = StoreResident.apply(x, space)  # type: ignore[no-untyped-call]
    return result


class StoreResident(torch.autograd.Function):
    """Rows on the device, copied to a store."""

    @staticmethod
    def forward(ctx: Any, x: PartitionedTensor, space: RowSpace) -> OffloadedTensor:
        ctx.layout = x.layout
        local = x._local
        store = space.stores.allocate(space.layout, local.shape[1:], local.dtype, "source")
        store.write(0, local)
        return from_store(space, store)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from peergraph.fullgraph.offload.gathering import resident_rows

        if isinstance(grad, OffloadedTensor):
            grad = resident_rows(grad, ctx.layout)
        return grad, None


def selected_source(spaces: RowSpaces, structure: ChunkedCsc, rows: Tensor) -> OffloadedTensor:
    """Returns rows [selected rows, *features] on the device as rows of destinations.

    Args:
        spaces: of the graph.
        structure: the edges to selected destinations.
        rows: this rank's selected rows.
    """
    space = spaces.add(structure.destination_layout, structure.chunks)
    store = spaces.stores.allocate(space.layout, rows.shape[1:], rows.dtype, "source")
    store.write(0, rows)
    return from_store(space, store)


class LinearSum(torch.autograd.Function):
    """Sums or means of sources with constant weights: the gradient is the transposed sum."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        recorder: EdgeRecorder,
        content: Content,
        reduce: str,
        weights: PartitionedTensor | None,
    ) -> OffloadedTensor:
        ctx.recorder, ctx.reduce, ctx.weights = recorder, reduce, weights
        ctx.dtype = x.dtype
        return make_shell(content)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        recorder: EdgeRecorder = ctx.recorder
        sums = transposed_sum(recorder, grad, ctx.reduce, ctx.weights)
        if sums.dtype != ctx.dtype:
            sums = record(Tensor.to, (sums, ctx.dtype), {})
        return sums, None, None, None, None


def linear_sum(
    recorder: EdgeRecorder, reduce: str, x: Tensor, weights: PartitionedTensor | None
) -> OffloadedTensor:
    """Returns sums or means of rows of sources, by constant weights of edges or without."""
    message = "copy_u" if weights is None else "mul"
    run = functools.partial(Csc.spmm, message=message, reduce=reduce)
    content, needs_grad = recorder.record(run, sources={"x": x}, edges={"e": weights})
    content.keeps = torch.is_grad_enabled()
    if not needs_grad:
        return make_shell(content)
    record_made = content.record
    assert record_made is not None
    [source] = [part for part in record_made.operands if isinstance(part, SourceOperand)]
    result: OffloadedTensor = LinearSum.apply(  # type: ignore[no-untyped-call]
        source.rows.identity, recorder, content, reduce, weights
    )
    return result


def transposed_sum(
    recorder: EdgeRecorder, grad: Tensor, reduce: str, weights: PartitionedTensor | None
) -> OffloadedTensor:
    """Returns the gradient of :func:`linear_sum` for the sources, to be computed. Collective."""
    structure = recorder.structure
    if not isinstance(grad, OffloadedTensor):
        assert isinstance(grad, PartitionedTensor)
        grad = store_resident(recorder.destinations, grad)
    with torch.no_grad():
        selected = grad._content.selected
        if (
            selected is not None
        ):  # The edges to selected rows only, whose gradients are on the device
            structure = selected.selection.structure(structure)
            grad = selected_source(recorder.spaces, structure, selected.tensor)
            if weights is not None:
                rows = structure.edge_layout.parent_rows
                assert rows is not None
                weights = from_local(weights._local[rows], structure.edge_layout)
        if reduce == "mean":
            degrees = structure.resident.in_degrees().clamp_(min=1).to(grad.dtype)
            shape = [-1, *[1] * (grad.dim() - 1)]
            grad = record(torch.div, (grad, degrees.view(shape)), {})
        back = structure.reversed(recorder.sources.chunks)
        reverse = EdgeRecorder(recorder.spaces, back)
        edges = None
        if weights is not None:
            edges = from_local(structure.reverse_edge_rows(weights._local), back.edge_layout)
        message = "copy_u" if edges is None else "mul"
        run = functools.partial(Csc.spmm, message=message, reduce="sum")
        content, _ = reverse.record(run, sources={"x": grad}, edges={"e": edges})
    return make_shell(content)
