"""Records compiled to a list of steps, which is run on each chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Operand,
    PlainOperand,
    Record,
    ResidentOperand,
    RowOperand,
    SourceOperand,
    fill,
    without_history,
)
from peergraph.fullgraph.offload.tensor.offloaded_function import without_hooks
from peergraph.fullgraph.offload.tensor.offloaded_tensor import ChangeMark, Content
from peergraph.fullgraph.offload.tensor.operations import Operation, Slot
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.offload.tensor.virtual_rank import VirtualRank
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows, chunk_rows, partitioned
from peergraph.fullgraph.tensor.nested import map_nested, parts_in, tensors_in
from peergraph.fullgraph.tensor.registry import CHUNK_RULES, DRAWING_CHUNK_RULES

WHOLE_RESULT = -1
"""In place of the number of one of the results of a function."""

IsLeaf = Callable[[RowOperand], bool]

_MOST_PROGRAMS = 16  # that end with the same operation, and are kept


class Step:
    """One operation, prepared for all chunks.

    Args:
        operation: what is called.
        slots: of its operands.
        outputs: which result goes to which slot.
    """

    __slots__ = ("_args", "_changed", "_kwargs", "_operation", "_outputs", "_run_on_rows", "slots")

    def __init__(
        self, operation: Operation, slots: Sequence[int], outputs: Sequence[tuple[int, int]]
    ) -> None:
        def renumber(value: Any) -> Any:
            return Slot(slots[value.place]) if type(value) is Slot else value

        self._operation, self._outputs = operation, tuple(outputs)
        self._args = map_nested(operation.args, renumber)
        self._kwargs = map_nested(operation.kwargs, renumber)
        self._changed = None if operation.changed is None else slots[operation.changed]
        self.slots = frozenset((*slots, *(slot for _, slot in outputs)))
        """Of the operands and of the results."""
        self._run_on_rows = self._find_row_function()

    def _find_row_function(self) -> Callable[[list[Any], tuple[Seed, ...]], Any] | None:
        """Returns what computes the results from all values on plain rows, if anything does."""
        operation = self._operation
        if operation.changed is not None or operation.modes.autocast[0]:
            return None
        run = getattr(operation.func, "run_on_rows", None)
        if run is None and self._outputs[0][0] != WHOLE_RESULT:
            run = CHUNK_RULES.get(operation.func)
        if run is None or parts_in(self._kwargs, Slot):
            return None
        places = [part.place if type(part) is Slot else None for part in self._args]
        if any(parts_in(part, Slot) for part in self._args if type(part) is not Slot):
            return None
        pairs, kwargs = list(zip(places, self._args, strict=True)), self._kwargs

        def run_on_rows(values: list[Any], seeds: tuple[Seed, ...]) -> Any:
            args = [part if place is None else values[place] for place, part in pairs]
            return run(*args, seeds=seeds, **kwargs) if draws else run(*args, **kwargs)

        draws = run in DRAWING_CHUNK_RULES
        return run_on_rows

    def run(self, rank: VirtualRank, values: list[Any], seeds: tuple[Seed, ...]) -> None:
        """Runs the call on `values` and stores its results there.

        Args:
            rank: that the rows belong to.
            values: by slot.
            seeds: what random operations drew at the record.
        """
        if self._run_on_rows is not None and self._operation.modes.are_current():
            result = self._run_on_rows(values, seeds)
            if type(result) is tuple:
                for index, slot in self._outputs:
                    values[slot] = result[index]
                return
            if result is not None:
                values[self._outputs[0][1]] = result
                return
        self._run_by_rules(rank, values, seeds)

    def _run_by_rules(self, rank: VirtualRank, values: list[Any], seeds: tuple[Seed, ...]) -> None:
        """Runs the call on partitioned tensors of the virtual rank."""
        operation = self._operation
        changed = None
        with rank.replaying(seeds), operation.modes.entered():
            args, kwargs = fill(self._args, values), fill(self._kwargs, values)
            if self._changed is not None:
                # A function that changes an operand in place gets a copy of it. The same tensor
                # as another argument, as in x.mul_(x), is what it was, for gradients, too.
                changed = partitioned(values[self._changed]).clone()
                if self._kwargs.get("out") == Slot(self._changed):
                    kwargs = {**kwargs, "out": changed}
                elif self._args and self._args[0] == Slot(self._changed):
                    args = (changed, *args[1:])
                else:
                    operands = values.copy()
                    operands[self._changed] = changed
                    args, kwargs = fill(self._args, operands), fill(self._kwargs, operands)
            result = operation.func(*args, **kwargs)
        if changed is not None:
            [(_, slot)] = self._outputs
            values[slot] = changed
            return
        results = None
        for index, slot in self._outputs:
            if index == WHOLE_RESULT:
                values[slot] = result
            else:
                results = results or tensors_in(result)
                values[slot] = chunk_rows(results[index])


class Part(NamedTuple):
    """An operation of a program."""

    operation: Operation
    slots: tuple[int, ...]
    """Of its operands."""
    outputs: tuple[int, ...]
    """Which of its results get slots."""


class Program:
    """Steps that compute the rows of a chunk from inputs; holds no rows and no seeds.

    Args:
        steps: in their order.
        num_values: slots of all values; the first are the inputs.
    """

    def __init__(self, steps: Sequence[Step], num_values: int) -> None:
        self.steps = list(steps)
        self.num_values = num_values
        self._last_uses: dict[frozenset[int], list[list[int]]] = {}

    def last_uses(self, results: Collection[int]) -> list[list[int]]:
        """Returns, for each step, the slots that no later step reads and that are not kept."""
        key = frozenset(results)
        result = self._last_uses.get(key)
        if result is None:
            later = set(key)
            uses: list[list[int]] = []
            for step in reversed(self.steps):
                last = step.slots - later
                later |= last
                uses.append(sorted(last))
            result = self._last_uses[key] = uses[::-1]
        return result

    def run(
        self,
        rank: VirtualRank,
        inputs: list[Any],
        seeds: Sequence[tuple[Seed, ...]],
        last_uses: Sequence[Sequence[int]],
    ) -> list[Any]:
        """Returns all values, of which the first are the inputs.

        Args:
            rank: that the rows belong to.
            inputs: in their order; the list takes all values.
            seeds: of each step.
            last_uses: for each step, slots whose values are not needed after it.
        """
        values = inputs
        values.extend([None] * (self.num_values - len(inputs)))
        for step, drawn, last in zip(self.steps, seeds, last_uses, strict=True):
            step.run(rank, values, drawn)
            for slot in last:
                values[slot] = None
        return values


class Recipe:
    """What a program is made of; holds no rows. The program is made when it is run.

    Args:
        num_inputs: of the program.
        parts: the operations in their order, each with the slots of its operands and with which of
            its results get slots.
        seeds: what random operations drew, for each operation.
        outputs: the slots of the results.
    """

    def __init__(
        self,
        num_inputs: int,
        parts: tuple[Part, ...],
        seeds: Sequence[tuple[Seed, ...]],
        outputs: Sequence[int],
    ) -> None:
        self._num_inputs, self._parts, self._seeds = num_inputs, parts, seeds
        self.outputs = list(outputs)
        """The slots of the results."""

    @cached_property
    def program(self) -> Program:
        """The steps. If all operations are shared, equal recipes have the same program."""
        programs = self._parts[-1].operation.programs if self._parts else None
        if programs is None or any(part.operation.programs is None for part in self._parts):
            return self._make()
        key = self._num_inputs, self._parts
        program: Program | None = programs.get(key)
        if program is None:
            if len(programs) >= _MOST_PROGRAMS:
                programs.clear()
            program = programs[key] = self._make()
        return program

    def run(
        self, rank: VirtualRank, inputs: list[Any], last_uses: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Returns all values of the program: see :meth:`Program.run`."""
        return self.program.run(rank, inputs, self._seeds, last_uses)

    def _make(self) -> Program:
        count = self._num_inputs
        steps = []
        for operation, slots, results in self._parts:
            steps.append(Step(operation, slots, list(zip(results, itertools.count(count)))))
            count += len(results)
        return Program(steps, count)


class Compiled:
    """What rows are computed from, and how.

    Args:
        roots: the contents or operands that are computed.
        is_leaf: whether rows are an input; those of others are computed.
    """

    def __init__(self, roots: Sequence[RowOperand], is_leaf: IsLeaf) -> None:
        self.operands: list[Operand] = []
        """Of the inputs."""
        self.contents: list[Content] = []
        """The rows that are computed."""
        self._is_leaf = is_leaf
        self._inputs: dict[Any, int] = {}
        self._nodes: dict[int, _Node] = {}
        self._order: list[_Node] = []
        self._receivers: set[Any] = set()
        self._content_ids: set[int] = set()
        values = [self._visit(root, True) for root in roots]
        if len(self._receivers) < len(self._inputs):
            self.operands = [
                part if key in self._receivers else without_history(part)
                for key, part in zip(self._inputs, self.operands, strict=True)
            ]
        count = len(self.operands)
        for node in self._order:
            node.first, count = count, count + len(node.outputs)
        parts = tuple(
            Part(node.record.operation, tuple(map(_slot, node.operands)), tuple(node.outputs))
            for node in self._order
        )
        seeds = [node.record.seeds for node in self._order]
        self.recipe = Recipe(len(self.operands), parts, seeds, [_slot(value) for value in values])
        """How the rows are computed."""

    def change_marks(self) -> list[tuple[int, ChangeMark]]:
        """Returns the marks of all rows that are read or computed, each with the rows' slot."""
        marks = [(self.slot_of(content), content.change_mark) for content in self.contents]
        for place, operand in enumerate(self.operands):
            rows = operand.rows if isinstance(operand, SourceOperand) else operand
            if isinstance(rows, RowOperand):
                marks.append((place, rows.content.change_mark))
        return marks

    def slot_of(self, content: Content) -> int:
        """Returns the slot of the rows that the program computes for a content."""
        return _slot((self._nodes[id(content.record)], content.output))

    def _visit(self, operand: Operand, receives: bool) -> _Value:
        """Finds the records and the inputs that an operand is computed from; returns its value.

        Args:
            operand: rows or other values that a result is computed from.
            receives: whether gradients of the results flow to it.
        """
        if type(operand) is RowOperand and not self._is_leaf(operand):
            content = operand.cell.content
            record, output = content.record, content.output
            assert record is not None
            node = self._nodes.get(id(record))
            is_new = node is None
            if node is None:
                node = self._nodes[id(record)] = _Node(record)
            if is_new or (receives and not node.receives):
                node.receives = receives
                node.operands = [
                    self._visit(part, receives and _passes_gradients(part))
                    for part in record.operands
                ]
            if is_new:
                self._order.append(node)
            if output not in node.outputs:
                node.outputs.append(output)
            if id(content) not in self._content_ids:
                self._content_ids.add(id(content))
                self.contents.append(content)
            return node, output
        key = _key(operand)
        if receives:
            self._receivers.add(key)
        place = self._inputs.get(key)
        if place is None:
            place = self._inputs[key] = len(self.operands)
            self.operands.append(operand)
        return place


class _Node:
    """A record whose rows are computed.

    Args:
        record: the record.
    """

    __slots__ = ("first", "operands", "outputs", "receives", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.operands: list[_Value] = []
        self.outputs: list[int] = []
        """The results that get slots."""
        self.receives = False
        """Whether the backward pass computes gradients of its rows."""
        self.first = -1
        """The slot of the first of the outputs."""


_Value = int | tuple[_Node, int]
"""The number of an input, or a result of a record."""


def _slot(value: _Value) -> int:
    if isinstance(value, int):
        return value
    node, output = value
    return node.first + node.outputs.index(output)


def _passes_gradients(operand: Operand) -> bool:
    """Whether gradients flow to an operand: not to detached rows, nor to ``randn_like(x)``."""
    if not isinstance(operand, RowOperand) or operand.identity is not None:
        return True
    return operand.content.record is None or operand.cell.needs_grad


def _key(operand: Operand) -> Any:
    if isinstance(operand, RowOperand):
        return "rows", id(operand.content), id(operand.identity)
    if isinstance(operand, SourceOperand):
        rows = operand.rows
        return "sources", id(rows.content), id(rows.identity), id(operand.structure)
    if isinstance(operand, EdgesOperand):
        return "edges", id(operand.structure), operand.in_window
    # Values that a tensor had at other records are other inputs.
    if isinstance(operand, PlainOperand):
        return PlainOperand, id(operand.tensor), id(operand.values)
    # Selected rows have no digest: nothing else has them.
    return type(operand), id(operand.tensor), id(getattr(operand, "digest", None))


class Place:
    """The rows that a program runs on: all of a chunk, or selected ones.

    Args:
        chunk: number of the chunk.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def row_layout(self, space: RowSpace) -> RowLayout:
        """Returns the layout of the virtual rank."""
        return space.chunk_layout(self.chunk)

    def add_to_resident(self, operand: ResidentOperand, total: Tensor, part: Tensor) -> None:
        """Adds rows of the place to `total`, which has the local rows of an operand."""
        self.resident_part(operand, total).add_(part)

    def resident_rows(self, operand: ResidentOperand) -> ChunkRows:
        """Returns the rows of a tensor that is on the device."""
        tensor, space = operand.tensor, operand.space
        local = tensor._local
        dim = tensor.partitioned_dim
        layout = tensor.row_layout.rebased(self.row_layout(space))
        return ChunkRows(self.resident_part(operand, local), layout, dim)

    def resident_part(self, operand: ResidentOperand, local: Tensor) -> Tensor:
        """Returns the place's rows of `local`, which has the local rows of an operand; a view."""
        layout, space, dim = (
            operand.tensor.row_layout,
            operand.space,
            operand.tensor.partitioned_dim,
        )
        start, stop = space.chunks.range(self.chunk)
        if layout.tiles > 1:
            shape = local.shape
            tiles = local.view(*shape[:dim], layout.tiles, -1, *shape[dim + 1 :])
            return tiles.narrow(dim + 1, start, stop - start).flatten(dim, dim + 1)
        times = layout.repeats
        return local.narrow(dim, start * times, (stop - start) * times)


class SourceRows(NamedTuple):
    """Rows of sources, and the edges from them to the destinations of a chunk."""

    rows: Tensor | None
    """[source rows, *features]; None where only the edges are needed."""
    csc: Csc
    """The edges."""
    place: Place
    """Where the destinations are."""


@contextmanager
def no_autograd() -> Iterator[None]:
    """A context without gradients and outside of inference mode, with rules of functions."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._EnableTorchFunction(),
        without_hooks(),
    ):
        yield
