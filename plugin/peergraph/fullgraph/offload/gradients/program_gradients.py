"""The gradients of a program over chunks: computed in one pass, for all of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.exchange.replicas import sum_of_ranks
from peergraph.fullgraph.exchange.transport import split_rows
from peergraph.fullgraph.offload.gradients.input_kind import InputKind, input_of
from peergraph.fullgraph.offload.gradients.plain_inputs import PlainInputs
from peergraph.fullgraph.offload.passes.chunk_pass import PassChunk
from peergraph.fullgraph.offload.programs.program import Compiled, Place, Recipe, SourceRows
from peergraph.fullgraph.offload.programs.record import (
    Operand,
    PlainOperand,
    ResidentOperand,
    RowOperand,
    SourceOperand,
    refuse_changed,
)
from peergraph.fullgraph.offload.programs.row_pass import (
    RowPass,
    store_required,
    value_at,
    write_rows,
)
from peergraph.fullgraph.offload.programs.selected_rows import (
    Selection,
    spread_rows,
)
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.tensor.offloaded_function import without_inference
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    from_store,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.row_space import RowSpace, Undo, rows_first
from peergraph.fullgraph.offload.tensor.virtual_rank import partial_sum
from peergraph.fullgraph.tensor.chunk_rows import ChunkRows
from peergraph.fullgraph.tensor.conversions import from_local
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap

Heads = Callable[[PassChunk, Place, list[Any], list[Any]], tuple[list[Tensor], list[Tensor]]]
"""Returns outputs and their gradients. Called with a chunk, its place, the rows that were computed
without gradients, and the values of the differentiated program."""


class ProgramGradients:
    """A program whose gradients are computed in a pass, and its inputs.

    Kept by a node of autograd, which keeps the inputs that have rows itself.

    Args:
        space: the rows that are visited.
        compiled: the program.
    """

    def __init__(self, space: RowSpace, compiled: Compiled) -> None:
        self.space = space
        self.recipe: Recipe = compiled.recipe
        self.kinds = [input_of(operand) for operand in compiled.operands]
        self.outputs = compiled.recipe.outputs
        self.change_marks = compiled.change_marks()

    def save(
        self,
        ctx: Any,
        compiled: Compiled,
        inputs: Sequence[Tensor | None],
        selected_rows: Sequence[Tensor | None] = (),
    ) -> None:
        """Keeps the inputs that have rows until the graph is freed.

        Args:
            ctx: of the node.
            compiled: the program.
            inputs: of the node.
            selected_rows: [selected rows, *features] of inputs that are not to be computed again;
                None for others.
        """
        with_rows = [
            _recorded_rows(operand, part)
            for operand, part in zip(compiled.operands, inputs, strict=True)
            if isinstance(part, PartitionedTensor)
        ]
        self._selected_places = [i for i, rows in enumerate(selected_rows) if rows is not None]
        ctx.save_for_backward(*with_rows, *(rows for rows in selected_rows if rows is not None))

    def backward(
        self,
        ctx: Any,
        needs: Sequence[bool],
        heads: Heads,
        *,
        roots: Sequence[RowOperand] = (),
        reductions: Sequence[Tensor] = (),
        selection: Selection | None = None,
        further: Sequence[Operand] = (),
    ) -> list[Tensor | None]:
        """Returns the gradients of the inputs, computed in one pass. Collective.

        Args:
            ctx: of the node.
            needs: which inputs need gradients.
            heads: what is differentiated.
            roots: rows that are computed without gradients beside, such as those of the output's
                gradient.
            reductions: results of the reductions over all rows that the program asks for.
            selection: the rows that have a gradient; None: all.
            further: operands that `heads` takes: see :func:`value_at`.
        """
        refuse_second_derivative()
        saved = iter(ctx.saved_tensors)
        operands: list[Any] = [
            kind.operand(next(saved)) if isinstance(kind, InputKind) else kind
            for kind in self.kinds
        ]
        selected_rows = {id(operands[place]): next(saved) for place in self._selected_places}
        backward = _BackwardPass(self, operands, selected_rows, roots, heads, reductions, selection)
        return backward.run(needs, further)


def _recorded_rows(operand: Operand, part: PartitionedTensor) -> PartitionedTensor:
    """Returns a tensor of an operand's rows: `part` has others if it was changed in place."""
    rows = operand.rows if isinstance(operand, SourceOperand) else operand
    if not isinstance(rows, RowOperand):
        # A constant, such as the norm of edges, that a layer cached in inference mode.
        constant: PartitionedTensor = without_inference(part)
        return constant
    recorded = make_shell(rows.content)
    recorded.requires_grad = part.requires_grad
    return recorded


class _BackwardPass:
    """A pass over chunks that runs a program again and differentiates it.

    Args:
        differentiated: the program.
        operands: its inputs.
        selected_rows: rows of inputs that are not computed again, by the id of the operand.
        roots, heads, reductions, selection: see :meth:`ProgramGradients.backward`.
    """

    def __init__(
        self,
        differentiated: ProgramGradients,
        operands: Sequence[Operand],
        selected_rows: dict[int, Tensor],
        roots: Sequence[RowOperand],
        heads: Heads,
        reductions: Sequence[Tensor],
        selection: Selection | None,
    ) -> None:
        self._space, self._recipe = differentiated.space, differentiated.recipe
        self._operands, self._selected_rows, self._selection = operands, selected_rows, selection
        self._heads, self._reductions = heads, reductions
        self._gradients: list[GradientSum | None] = []
        # Aggregated rows that were not stored are computed again.
        rows = [
            operand
            for operand in operands
            if isinstance(operand, RowOperand) and id(operand) not in selected_rows
        ]
        store_required([*roots, *rows])
        self._pass = RowPass(self._space, [*roots, *rows], selection)
        slots = self._pass.outputs
        self._root_slots = slots[: len(roots)]
        self._row_slots = dict(zip(map(id, rows), slots[len(roots) :], strict=True))
        # Autograd keeps what the gradients need, and nothing else stays.
        self._plain = PlainInputs(operands)
        changed_rows = [slot for slot, mark in differentiated.change_marks if mark.is_set]
        self._changed = [*changed_rows, *self._plain.changed]
        """The slots of tensors that have been changed in place."""
        self._saves_changed = False
        self._last_uses = self._recipe.program.last_uses([*differentiated.outputs, *self._changed])

    def run(self, needs: Sequence[bool], further: Sequence[Operand]) -> list[Tensor | None]:
        """Returns the gradients of the inputs. Collective.

        Args:
            needs, further: see :meth:`ProgramGradients.backward`.
        """
        # Not before: rows that other passes have stored for this one have taken the memory of rows
        # that those passes needed last.
        self._gradients = [
            GradientSum(operand, self._space, self._selection) if need else None
            for operand, need in zip(self._operands, needs, strict=True)
        ]
        stores = [
            (gradient.store, gradient.structure)
            for gradient in self._gradients
            if gradient is not None and gradient.store is not None
        ]
        self._pass.run(
            self._visit,
            operands=[
                *(operand for operand in self._operands if id(operand) not in self._selected_rows),
                *further,
            ],
            writes=[store for store, structure in stores if structure is None],
            gradients=[part for part in stores if part[1] is not None],
        )
        if self._changed:
            refuse_changed(self._saves_changed, self._space.rank.real)
        add_over_ranks(self._space.rank.real, [g for g in self._gradients if g is not None])
        return [None if gradient is None else gradient.result() for gradient in self._gradients]

    def _visit(self, chunk: PassChunk, place: Place, values: list[Any]) -> None:
        inputs, leaves, sums = self._inputs(chunk, place, values)
        rank = self._space.rank
        with torch.enable_grad():
            with rank.with_reductions(self._reductions), self._watch_saved() as saved:
                results = self._recipe.run(rank, inputs, self._last_uses)
            self._saves_changed |= any(_memory(results[slot]) in saved for slot in self._changed)
            computed = [values[slot] for slot in self._root_slots]
            outputs, grads = self._heads(chunk, place, computed, results)
        with self._plain.as_now():
            parts = self._differentiate(outputs, grads, leaves)
        for gradient, leaf, grad in zip(sums, leaves, parts, strict=True):
            gradient.add(chunk, place, leaf, grad)

    @contextmanager
    def _watch_saved(self) -> Iterator[dict[int, Any]]:
        """Within the context, notes the memory that autograd saves, if any rows were changed.

        On the device a function that saves its rows has an error, or a gradient with other rows,
        after a change in place; any other has its gradient.
        """
        saved: dict[int, Any] = {}

        def pack(tensor: Tensor) -> Tensor:
            memory = tensor.untyped_storage()
            saved[memory._cdata] = memory  # in use, so that its address is not given out again
            return tensor

        if not self._changed:
            yield saved
            return
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield saved

    def _inputs(
        self, chunk: PassChunk, place: Place, values: list[Any]
    ) -> tuple[list[Any], list[Tensor], list[GradientSum]]:
        """Returns the program's inputs in a chunk, the leaves among them, and each leaf's sum."""
        value: Any
        inputs: list[Any] = []
        leaves: list[Tensor] = []
        sums: list[GradientSum] = []
        for operand, gradient in zip(self._operands, self._gradients, strict=True):
            if id(operand) in self._selected_rows:
                part = self._selected_rows[id(operand)][chunk.start : chunk.stop]
                value = ChunkRows(part, place.row_layout(self._space))
            elif isinstance(operand, RowOperand):
                value = values[self._row_slots[id(operand)]]
            elif isinstance(operand, PlainOperand):
                value = self._plain.value(operand)
            else:
                value = value_at(operand, chunk, place)
            if gradient is not None:
                value, leaf = differentiable_value(value)
                leaves.append(leaf)
                sums.append(gradient)
            inputs.append(value)
        return inputs, leaves, sums

    def _differentiate(
        self, outputs: Sequence[Tensor], grads: Sequence[Tensor], leaves: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """The gradient of each leaf; None is zero."""
        places = [i for i, output in enumerate(outputs) if output.requires_grad]
        if not places:
            return [None] * len(leaves)
        with self._space.rank.reducing(partial_sum):
            return torch.autograd.grad(
                [outputs[i] for i in places],
                leaves,
                [grads[i] for i in places],
                allow_unused=True,
            )


class GradientSum:
    """The gradient of one input, chunk by chunk.

    Args:
        operand: the input.
        space: the rows that are visited.
        selection: those that are visited; None: all.
    """

    def __init__(self, operand: Operand, space: RowSpace, selection: Selection | None) -> None:
        self.operand = operand
        self.selection = selection
        self.structure = operand.structure if isinstance(operand, SourceOperand) else None
        if selection is not None and self.structure is not None:
            self.structure = selection.structure(self.structure)
        self.store: RowStore | None = None
        """Of rows of offloaded tensors."""
        self.undo: Undo | None = None
        """Makes the gradient of what is stored, where rows are not the first dimension."""
        self.total: Tensor | None = None
        """Of tensors on the device."""
        if isinstance(operand, (RowOperand, SourceOperand)):
            rows = operand if isinstance(operand, RowOperand) else operand.rows
            self.content = rows.content
            if selection is not None and self.structure is None:
                shape = selection.row_layout.local_count, *self.content.features
                dtype, device = self.content.dtype, space.rank.device
                self.total = torch.zeros(shape, dtype=dtype, device=device)
                return
            features = self.content.features
            if not self.content.is_storable:
                view, self.undo = rows_first(self.content.probe, self.content.space.probe)
                features = tuple(view.shape[1:])
            in_order = self.structure is None and self.content.gradient_in_order
            self.store = self.content.space.allocator.allocate(
                self.content.space.row_layout,
                features,
                self.content.dtype,
                "sequential" if in_order else "source",
                narrow=True,
                what="gradient",
            )
        elif isinstance(operand, ResidentOperand):
            self.total = torch.zeros_like(operand.tensor._local)
        elif isinstance(operand, PlainOperand):
            self.total = torch.zeros_like(operand.values)

    def add(self, chunk: PassChunk, place: Place, leaf: Tensor, part: Tensor | None) -> None:
        """Adds the gradient of a chunk; None is zero."""
        if self.structure is not None:
            if part is not None:
                chunk.add_source_gradients(self.store, part, self.structure)  # type: ignore[arg-type]
        elif self.store is not None:
            rows = torch.zeros_like(leaf) if part is None else part
            if self.undo is not None:
                base = place.row_layout(self.content.space)
                layout = self.content.row_layout.rebased(base)
                dim = self.content.probe.partitioned_dim
                rows = rows_first(wrap(rows, layout, dim), base)[0]._local
            write_rows(chunk, self.content, self.store, rows)
        elif part is not None:
            assert self.total is not None
            if isinstance(self.operand, ResidentOperand):
                place.add_to_resident(self.operand, self.total, part)
            elif isinstance(self.operand, RowOperand):
                self.total[chunk.start : chunk.stop] = part
            elif isinstance(part, PartitionedTensor):
                # Of a plain tensor of all rows, which autograd takes for rows: there may be one.
                positions = part.row_layout.positions
                self.total.index_add_(part.partitioned_dim, positions, part._local)
            else:
                self.total.add_(part)

    def result(self) -> Tensor:
        """Returns the gradient."""
        if self.store is not None:
            rows = from_store(self.content.space, self.store)
            return rows if self.undo is None else self.undo(rows)
        assert self.total is not None
        if isinstance(self.operand, RowOperand):
            assert self.selection is not None
            return spread_rows(self.total, self.selection)
        if isinstance(self.operand, ResidentOperand):
            tensor = self.operand.tensor
            return wrap(self.total, tensor.row_layout, tensor.partitioned_dim)
        return self.total


def add_over_ranks(group: Any, gradients: Sequence[GradientSum]) -> None:
    """Adds gradients of plain tensors over the ranks, those of one dtype at once. Collective."""
    by_dtype: dict[torch.dtype, list[GradientSum]] = {}
    for gradient in gradients:
        if isinstance(gradient.operand, PlainOperand):
            assert gradient.total is not None
            by_dtype.setdefault(gradient.total.dtype, []).append(gradient)
    if group.world_size == 1:
        return
    for same in by_dtype.values():
        totals = [gradient.total for gradient in same if gradient.total is not None]
        flat = sum_of_ranks(torch.cat([total.reshape(-1) for total in totals]), group)
        parts = split_rows(flat, [total.numel() for total in totals])
        for gradient, total, part in zip(same, totals, parts, strict=True):
            gradient.total = part.view(total.shape)


def refuse_second_derivative() -> None:
    """Raises NotImplementedError in a backward pass that is differentiated itself."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            "gradients of gradients are not implemented for rows that are larger than GPU "
            "memory (create_graph=True): use full_graph(..., offload=False)"
        )


def _memory(value: Any) -> int | None:
    """Returns what identifies the memory of a tensor or of rows; None where there are none."""
    if isinstance(value, (ChunkRows, SourceRows)):
        value = value.rows
    elif isinstance(value, PartitionedTensor):
        value = value._local
    # The addresses of empty tensors are equal.
    return None if value is None else value.untyped_storage()._cdata


def differentiable_value(value: Any) -> tuple[Any, Tensor]:
    """Returns a value that is differentiated, and the leaf that gets its gradient."""
    if isinstance(value, SourceRows):
        assert value.rows is not None
        leaf = value.rows.detach().requires_grad_()
        return SourceRows(leaf, value.csc, value.place), leaf
    if type(value) is ChunkRows:
        leaf = value.rows.detach().requires_grad_()
        return ChunkRows(leaf, value.row_layout, value.partitioned_dim), leaf
    if isinstance(value, PartitionedTensor):
        leaf = value._local.detach().requires_grad_()
        with torch.enable_grad():
            return from_local(leaf, value.row_layout, value.partitioned_dim), leaf
    leaf = value.detach().requires_grad_()
    return leaf, leaf
