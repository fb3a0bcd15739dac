"""Functions over the edges to a chunk's rows, recorded like functions of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.offloaded_tensor import (
    Content,
    OffloadedTensor,
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
    Slot,
    SourceOperand,
)
from peergraph.fullgraph.offload.replay import Place, SourceRows
from peergraph.fullgraph.offload.row_segment import make_boundary, row_operand, with_history
from peergraph.fullgraph.offload.virtual_rank import RowSpace, RowSpaces
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor


class EdgeVerb:
    """A verb of :class:`peergraph.aggregate.Csc` on the edges to a chunk's rows.

    Args:
        verb: its name.
        space: of the result's rows.
        options: further arguments.
    """

    def __init__(self, verb: str, space: RowSpace, options: Mapping[str, Any]) -> None:
        self.__name__ = verb
        self.space = space
        self.options = dict(options)

    def __call__(self, edges: SourceRows, *args: Any, **kwargs: Any) -> PartitionedTensor:
        """Runs the verb; arguments are those of the verb, with rows of chunks."""
        rows = [_local(arg) for arg in args]
        named = {name: _local(arg) for name, arg in kwargs.items()}
        result = getattr(edges.csc, self.__name__)(*rows, **named, **self.options)
        return from_local(result, edges.place.layout(self.space))


def _local(value: Any) -> Any:
    if isinstance(value, SourceRows):
        return value.rows
    return value.to_local() if isinstance(value, PartitionedTensor) else value


class EdgeRecorder:
    """Records verbs over one structure.

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
        verb: str,
        args: Sequence[tuple[str, Any]],
        named: Mapping[str, tuple[str, Any]] | None = None,
        *,
        by_edge: bool = False,
        **options: Any,
    ) -> tuple[Content, bool]:
        """Returns the recorded result of a verb, and whether it needs gradients.

        Args:
            verb: of :class:`peergraph.aggregate.Csc`.
            args: its positional arguments, each with its role: ``u`` rows of sources, ``v`` of
                destinations, ``e`` of edges, ``w`` equal on all ranks, or ``-`` any other.
            named: named arguments in the same way.
            by_edge: whether the result has a row for each edge.
            options: named arguments that are no tensors.
        """
        space = self.edges if by_edge else self.destinations
        call = EdgeVerb(verb, space, options)
        operands: list[Operand] = [EdgesOperand(self.structure)]
        probes: list[Any] = [SourceRows(None, self._csc_of_probes(), _ProbePlace())]

        def enter(role: str, value: Any) -> Any:
            if value is None or role == "-":
                return value
            operand, probe = self._operand(verb, role, value)
            operands.append(operand)
            probes.append(probe)
            return Slot(len(operands) - 1)

        slots = [enter(role, value) for role, value in args]
        by_name = {name: enter(role, value) for name, (role, value) in (named or {}).items()}
        sources = [i for i, operand in enumerate(operands) if isinstance(operand, SourceOperand)]
        first = sources[0] if sources else 0
        given: list[Any] = [Slot(first), *slots]
        modes = Modes.current(space.rank.device)

        def probe_for(value: Any) -> Any:
            return probes[value.place] if type(value) is Slot else value

        result = call(
            *(probe_for(value) for value in given),
            **{name: probe_for(value) for name, value in by_name.items()},
        )
        if first:  # the edges come with the rows of sources
            operands, given, by_name = _without_first(operands, given, by_name)
        made = Record(call, tuple(given), by_name, operands, modes)
        return Content(space, result.detach(), record=made), result.requires_grad  # type: ignore[arg-type]

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

    def source_operand(self, x: Tensor) -> SourceOperand:
        """Returns rows of sources, which are stored before they are read."""
        space = self.sources
        if not isinstance(x, OffloadedTensor):
            assert isinstance(x, PartitionedTensor)
            x = store_resident(space, x)
        return SourceOperand(make_boundary(x), self.structure)

    def _operand(self, verb: str, role: str, value: Any) -> tuple[Operand, Any]:
        if role == "w":
            return plain_operand(value, self.destinations), value
        if role == "u":
            source = self.source_operand(value)
            content = source.rows.content
            rows = torch.zeros(
                (min(2, self.sources.layout.size), *content.features),
                dtype=content.dtype,
                device=self.destinations.rank.device,
            )
            rows.requires_grad_(value.requires_grad)
            return source, SourceRows(rows, self._csc_of_probes(), _ProbePlace())
        space = self.edges if role == "e" else self.destinations
        if isinstance(value, OffloadedTensor):
            return row_operand(value), probe_of(value)
        return resident_operand(verb, value, space)

    def _csc_of_probes(self) -> Csc:
        if self._probe_csc is None:
            sources = min(2, self.sources.layout.size)
            rows = self.destinations.probe.local_count
            edges = self.edges.probe.local_count
            places = torch.arange(edges, device=self.destinations.rank.device)
            ids = (places % max(sources, 1)).int()
            self._probe_csc = Csc.from_coo(ids, places.clamp(max=rows - 1).int(), rows, sources)
        return self._probe_csc


class _ProbePlace(Place):
    def __init__(self) -> None:
        super().__init__(-1)

    def layout(self, space: RowSpace) -> RowLayout:
        return space.probe


def _without_first(
    operands: list[Operand], given: list[Any], by_name: dict[str, Any]
) -> tuple[list[Operand], list[Any], dict[str, Any]]:
    def earlier(value: Any) -> Any:
        return Slot(value.place - 1) if type(value) is Slot else value

    return (
        operands[1:],
        [earlier(value) for value in given],
        {name: earlier(value) for name, value in by_name.items()},
    )


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
    content, needs_grad = recorder.record(
        "spmm", [("-", message), ("-", reduce), ("u", x), ("e", weights)]
    )
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
        content, _ = reverse.record(
            "spmm", [("-", message), ("-", "sum"), ("u", grad), ("e", edges)]
        )
    return make_shell(content)
