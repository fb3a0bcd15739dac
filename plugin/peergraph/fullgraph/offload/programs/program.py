"""Records compiled to a list of steps, which is run on each chunk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peergraph.aggregate import Csc
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.programs.record import (
    EdgesOperand,
    Modes,
    Operand,
    Record,
    ResidentOperand,
    RowOperand,
    Slot,
    SourceOperand,
    fill,
    map_nested,
    slots_in,
    tensors_in,
    without_history,
)
from peergraph.fullgraph.offload.programs.row_functions import RANDOM_FUNCTIONS, ROW_FUNCTIONS
from peergraph.fullgraph.offload.tensor.chunk_rows import ChunkRows, chunk_rows, partitioned
from peergraph.fullgraph.offload.tensor.offloaded_tensor import Content
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.offload.tensor.virtual_rank import VirtualRank
from peergraph.fullgraph.random.seeds import Seed

WHOLE_RESULT = -1
"""In place of the number of one of the results of a function."""

IsLeaf = Callable[[RowOperand], bool]


class Step:
    """One recorded call, prepared for all chunks.

    Args:
        func: what is called.
        args, kwargs: with a Slot in the place of each value.
        modes: of torch at the record.
        seeds: what random operations drew.
        changed: slot of the value that the function changes in place, of which it gets a copy.
        outputs: which result goes to which slot.
    """

    __slots__ = ("_run_on_rows", "args", "changed", "func", "kwargs", "modes", "outputs", "seeds")

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: Modes,
        seeds: tuple[Seed, ...],
        changed: int | None,
        outputs: list[tuple[int, int]],
    ) -> None:
        self.func = func
        self.args, self.kwargs = args, kwargs
        self.modes = modes
        self.seeds = seeds
        self.changed = changed
        self.outputs = outputs
        self._run_on_rows = self._find_row_function()

    def _find_row_function(self) -> Callable[[list[Any]], Any] | None:
        """Returns what computes the only result from all values on plain rows, if anything does."""
        if self.changed is not None or len(self.outputs) != 1 or self.modes.autocast[0]:
            return None
        run = getattr(self.func, "run_on_rows", None)
        if run is None and self.outputs[0][0] == 0:
            run = ROW_FUNCTIONS.get(self.func)
        if run is None or any(map(slots_in, self.kwargs.values())):
            return None
        places = [part.place if type(part) is Slot else None for part in self.args]
        if any(slots_in(part) for part in self.args if type(part) is not Slot):
            return None
        kwargs = dict(self.kwargs)
        if self.func in RANDOM_FUNCTIONS:
            kwargs["seeds"] = self.seeds
        given = list(zip(places, self.args, strict=True))
        return lambda values: run(
            *(part if place is None else values[place] for place, part in given), **kwargs
        )

    def run(self, rank: VirtualRank, values: list[Any]) -> None:
        """Runs the call on `values` and stores its results there."""
        if self._run_on_rows is not None and self.modes.are_current():
            result = self._run_on_rows(values)
            if result is not None:
                values[self.outputs[0][1]] = result
                return
        self._run_by_rules(rank, values)

    def _run_by_rules(self, rank: VirtualRank, values: list[Any]) -> None:
        """Runs the call on partitioned tensors of the virtual rank."""
        changed, given = None, values
        with rank.replaying(self.seeds), self.modes.entered():
            if self.changed is not None:
                changed = partitioned(values[self.changed]).clone()
                given = values.copy()
                given[self.changed] = changed
            result = self.func(*fill(self.args, given), **fill(self.kwargs, given))
        if changed is not None:
            [(_, slot)] = self.outputs
            values[slot] = changed
            return
        results = None
        for index, slot in self.outputs:
            if index == WHOLE_RESULT:
                values[slot] = result
            else:
                results = results or tensors_in(result)
                values[slot] = chunk_rows(results[index])


class Program:
    """Steps that compute the rows of a chunk from inputs; holds no rows.

    Args:
        steps: in their order.
        num_values: slots of all values; the first are the inputs.
    """

    def __init__(self, steps: Sequence[Step], num_values: int) -> None:
        self.steps = list(steps)
        self.num_values = num_values

    def last_uses(self, kept: Collection[int]) -> list[list[int]]:
        """Returns, for each step, the slots that no later step reads and that are not kept."""
        seen = set(kept)
        found: list[list[int]] = []
        for step in reversed(self.steps):
            last = set(slots_in((step.args, step.kwargs))) - seen
            last |= {slot for _, slot in step.outputs} - seen
            seen |= last
            found.append(sorted(last))
        return found[::-1]

    def run(
        self,
        rank: VirtualRank,
        inputs: list[Any],
        last_uses: Sequence[Sequence[int]] | None = None,
    ) -> list[Any]:
        """Returns all values, of which the first are the inputs.

        Args:
            rank: that the rows belong to.
            inputs: in their order; the list takes all values.
            last_uses: for each step, slots whose values are not needed after it.
        """
        values = inputs
        values.extend([None] * (self.num_values - len(inputs)))
        for place, step in enumerate(self.steps):
            step.run(rank, values)
            if last_uses is not None:
                for slot in last_uses[place]:
                    values[slot] = None
        return values


class Compiled:
    """A program, what its inputs are, and where its results are.

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
        self._computed: dict[int, list[tuple[int, int]]] = {}
        self._order: list[Record] = []
        self._differentiated: set[int] = set()
        self._receivers: set[Any] = set()
        for root in roots:
            self._discover(root, True)
        self.operands = [
            part if _key(part) in self._receivers else without_history(part)
            for part in self.operands
        ]
        count = len(self.operands)
        self._slots: dict[tuple[int, int], int] = {}
        for record in self._order:
            outputs = self._computed[id(record)]
            for place, (index, _) in enumerate(outputs):
                outputs[place] = index, count
                self._slots[id(record), index] = count
                count += 1
        self.program = Program([self._step(record) for record in self._order], count)
        self.outputs = [self._slot(root) for root in roots]
        """The slot of each root."""

    def _discover(self, operand: Operand, receives: bool) -> None:
        """Finds the records and the inputs that an operand is computed from.

        Args:
            operand: rows or other values that a result is computed from.
            receives: whether gradients of the results flow to it.
        """
        if isinstance(operand, RowOperand) and not self._is_leaf(operand):
            content = operand.content
            record = content.record
            assert record is not None
            outputs = self._computed.get(id(record))
            is_new = outputs is None
            if outputs is None:
                outputs = self._computed[id(record)] = []
            if is_new or (receives and id(record) not in self._differentiated):
                if receives:
                    self._differentiated.add(id(record))
                for part in record.operands:
                    self._discover(part, receives and _passes_gradients(part))
            if is_new:
                self._order.append(record)
            if all(index != content.output for index, _ in outputs):
                outputs.append((content.output, -1))
            if all(content is not known for known in self.contents):
                self.contents.append(content)
            return
        key = _key(operand)
        if receives:
            self._receivers.add(key)
        if key not in self._inputs:
            self._inputs[key] = len(self.operands)
            self.operands.append(operand)

    def slot_of(self, content: Content) -> int:
        """Returns the slot of rows that are computed."""
        return self._slots[id(content.record), content.output]

    def _slot(self, operand: Operand) -> int:
        if isinstance(operand, RowOperand) and not self._is_leaf(operand):
            return self.slot_of(operand.content)
        return self._inputs[_key(operand)]

    def _step(self, record: Record) -> Step:
        slots = [self._slot(operand) for operand in record.operands]

        def renumber(value: Any) -> Any:
            return Slot(slots[value.place]) if type(value) is Slot else value

        return Step(
            record.func,
            map_nested(record.args, renumber),
            map_nested(record.kwargs, renumber),
            record.modes,
            record.seeds,
            None if record.changed is None else slots[record.changed],
            self._computed[id(record)],
        )


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
    return type(operand), id(operand.tensor)


class Place:
    """The rows that a program runs on: all of a chunk, or selected ones.

    Args:
        chunk: number of the chunk.
    """

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def layout(self, space: RowSpace) -> RowLayout:
        """Returns the layout of the virtual rank."""
        return space.chunk_layout(self.chunk)

    def add_to_resident(self, operand: ResidentOperand, total: Tensor, part: Tensor) -> None:
        """Adds rows of the place to `total`, which has the local rows of an operand."""
        self.resident_part(operand, total).add_(part)

    def resident_rows(self, operand: ResidentOperand) -> ChunkRows:
        """Returns the rows of a tensor that is on the device."""
        tensor, space = operand.tensor, operand.space
        local = tensor._local
        operand.check_unchanged()
        dim = tensor.partitioned_dim
        layout = space.virtual_layout(self.layout(space), _on_space(tensor.layout, space))
        return ChunkRows(self.resident_part(operand, local), layout, dim)

    def resident_part(self, operand: ResidentOperand, local: Tensor) -> Tensor:
        """Returns the place's rows of `local`, which has the local rows of an operand; a view."""
        layout, space, dim = operand.tensor.layout, operand.space, operand.tensor.partitioned_dim
        start, stop = space.chunks.range(self.chunk)
        if layout.tiles > 1:
            shape = local.shape
            tiles = local.view(*shape[:dim], layout.tiles, -1, *shape[dim + 1 :])
            return tiles.narrow(dim + 1, start, stop - start).flatten(dim, dim + 1)
        times = layout.repeats
        return local.narrow(dim, start * times, (stop - start) * times)


def _on_space(layout: RowLayout, space: RowSpace) -> RowLayout:
    """A layout as one that is made of the space's, whose rows are the same."""
    if layout.parent is None or layout.parent_rows is not None:
        return space.layout
    parent = _on_space(layout.parent, space)
    return parent.repeat(layout.repeats) if layout.repeats > 1 else parent.tile(layout.tiles)


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
    with torch.inference_mode(False), torch.no_grad(), torch._C._EnableTorchFunction():
        yield
