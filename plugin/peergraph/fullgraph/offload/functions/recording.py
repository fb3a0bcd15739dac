"""Functions of offloaded tensors: recorded where they compute each row from the same row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.gradients.segment import move_history, row_operand, with_history
from peergraph.fullgraph.offload.programs.record import (
    Modes,
    Operand,
    PlainOperand,
    Record,
    ResidentOperand,
    RowOperand,
    Slot,
    map_nested,
    tensors_in,
    version_of,
)
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    RULES,
    Cell,
    Content,
    OffloadedTensor,
    detached,
    make_shell,
)
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.offload.tensor.virtual_rank import NeedsOtherRowsError
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.structure.edge_index import PartitionedEdgeIndex
from peergraph.fullgraph.structure.node_index import NodeIndex
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.selection import in_layout

# Plain operands up to this size are copied, so that a record keeps their values of that time.
_MOST_COPIED_BYTES = 64 << 20

# Functions that change running statistics in place.
_CHANGE_ARGUMENTS = {F.instance_norm, torch.instance_norm, F.batch_norm, torch.native_batch_norm}


def record(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records a call that computes each row from the same row; runs others over all chunks.

    The function runs once, on few rows of a virtual rank. If it asks that rank for a collective it
    needs other rows: then it is reduced chunk by chunk, if its result is plain.

    Raises:
        NotImplementedError: the function needs other rows and is no reduction.
    """
    call = Call(func, args, kwargs)
    try:
        result = call.run_on_probes()
    except NeedsOtherRowsError:
        from peergraph.fullgraph.offload.functions.reductions import reduce_over_chunks

        return reduce_over_chunks(call)
    return call.finish(result)


class Call:
    """A call with offloaded tensors: its operands, and the same call on probes.

    Args:
        func: what is called.
        args, kwargs: its arguments.
    """

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.func = func
        self.name = getattr(func, "__name__", str(func))
        given = tensors_in((args, kwargs))
        self.space = next(t._content.space for t in given if isinstance(t, OffloadedTensor))
        self.rank = self.space.rank
        check_parameters(tuple(t for t in given if type(t) is Parameter), self.rank.real)
        self.operands: list[Operand] = []
        self.tensors: list[Tensor] = []
        """The tensor of each operand."""
        self.probes: list[Tensor] = []
        """The tensor of few rows in the place of each operand."""
        self._places: dict[int, int] = {}
        named = self.name.endswith("_") or func in _CHANGE_ARGUMENTS
        self.changes = named or kwargs.get("inplace", False)
        """Whether the function may change an argument in place."""
        self.args = map_nested(args, self._slot)
        self.kwargs = map_nested(kwargs, self._slot)
        self.modes = Modes.current(self.rank.device)
        self.seeds: Sequence[Seed] = ()

    def run_on_probes(self) -> Any:
        """Returns what the function makes of the probes."""
        self._versions = [_versions_of(probe) for probe in self.probes]
        # Functions have rules also in a backward pass that runs without them.
        seeds_of_call = self.rank.recording_seeds(self.seeds)
        with seeds_of_call as self.seeds, torch._C._EnableTorchFunction():
            return self.func(
                *map_nested(self.args, self._probe), **map_nested(self.kwargs, self._probe)
            )

    def finish(self, result: Any) -> Any:
        """Returns the result of the call as offloaded tensors in the places of probes."""
        changed = self.changed()
        if changed:
            return self._finish_in_place(changed, result)
        record = Record(self.func, self.args, self.kwargs, self.operands, self.modes, self.seeds)
        made: dict[int, Any] = {}
        for index, output in enumerate(tensors_in(result)):
            if id(output) not in made:
                made[id(output)] = self._result(record, index, output)
        return map_nested(
            result, lambda part: made.get(id(part), part) if isinstance(part, Tensor) else part
        )

    def changed(self) -> list[int]:
        """The operands that the function has changed in place."""
        if isinstance(self.func, OpOverload):  # called below the counting of versions
            arguments = self.func._schema.arguments
            written = {i for i, a in enumerate(arguments) if a.is_write}
            names = {a.name for a in arguments if a.is_write}
            given = [value for i, value in enumerate(self.args) if i in written]
            given += [value for name, value in self.kwargs.items() if name in names]
            return [value.place for value in given if type(value) is Slot]
        return [
            place
            for place, (probe, version) in enumerate(zip(self.probes, self._versions, strict=True))
            if _versions_of(probe) != version
        ]

    def _result(self, record: Record, index: int, output: Tensor) -> Tensor:
        for probe, tensor in zip(self.probes, self.tensors, strict=True):
            if output is probe:
                return tensor
        if not isinstance(output, PartitionedTensor):
            return output
        content = Content(self.space_of(output), detached(output), record=record, output=index)
        made = recorded(content, output.requires_grad)
        self._note_alias(output, made)
        return made

    def _finish_in_place(self, changed: list[int], result: Any) -> Any:
        [place] = changed if len(changed) == 1 else [-1]
        handle = self.tensors[place] if place >= 0 else None
        if not isinstance(handle, OffloadedTensor):
            refuse(self.name, "a tensor on the device is changed in place by an offloaded one")
        others = (alias() for alias in handle._cell.aliases)
        if any(other is not None and other is not handle for other in others):
            refuse(self.name, "another tensor is a view of the one that is changed in place")
        probe = self.probes[place]
        record = Record(
            self.func, self.args, self.kwargs, self.operands, self.modes, self.seeds, place
        )
        assert isinstance(probe, PartitionedTensor)
        content = Content(self.space_of(probe), detached(probe), record=record)
        change_in_place(handle, content, probe.requires_grad, self.operands[place])
        return handle if result is probe else result

    def _note_alias(self, output: PartitionedTensor, made: OffloadedTensor) -> None:
        memory = output._local.untyped_storage()._cdata
        for probe, tensor in zip(self.probes, self.tensors, strict=True):
            if not isinstance(tensor, OffloadedTensor):
                continue
            assert isinstance(probe, PartitionedTensor)
            if probe._local.untyped_storage()._cdata == memory:
                aliases = tensor._cell.aliases
                if not aliases:
                    aliases.append(ref(tensor))
                aliases[:] = [alias for alias in aliases if alias() is not None]
                aliases.append(ref(made))
                made._cell.aliases = aliases

    def space_of(self, output: PartitionedTensor) -> RowSpace:
        """Returns the rows that a result on the probes has."""
        layout = output.layout
        while layout.parent is not None:
            layout = layout.parent
        for operand in self.operands:
            space = operand_space(operand)
            if space is not None and space.probe is layout:
                return space
        refuse(self.name, "rows of the result are not the rows of an argument")

    def _probe(self, value: Any) -> Any:
        return self.probes[value.place] if type(value) is Slot else value

    def _slot(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.operands)
            operand, probe = self._operand(value)
            self.operands.append(operand)
            self.tensors.append(value)
            self.probes.append(probe)
        return Slot(place)

    def _operand(self, tensor: Tensor) -> tuple[Operand, Tensor]:
        if isinstance(tensor, OffloadedTensor):
            return row_operand(tensor), self._changeable(tensor, probe_of(tensor))
        if isinstance(tensor, NodeIndex):
            tensor = tensor.ids()
        if isinstance(tensor, PartitionedTensor):
            return resident_operand(self.name, tensor, self.space)
        if isinstance(tensor, PartitionedEdgeIndex):
            refuse(self.name, "an argument is a list of edges")
        return plain_operand(tensor, self.space), self._changeable(tensor, tensor)

    def _changeable(self, tensor: Tensor, probe: Tensor) -> Tensor:
        """Returns a probe, or a copy of it that the function may change in place of `tensor`."""
        if not self.changes or (tensor.requires_grad and tensor.is_leaf):
            return probe  # A leaf that needs gradients cannot be changed in place.
        with torch.enable_grad():
            return probe.clone() if tensor.requires_grad or probe is tensor else probe


def probe_of(handle: OffloadedTensor) -> PartitionedTensor:
    """Returns a tensor of few rows in the place of an offloaded one."""
    stored = handle._content.probe
    probe = wrap(stored._local.detach(), stored.layout, stored.partitioned_dim)
    if handle.requires_grad:
        probe.requires_grad_()
    return probe


def plain_operand(tensor: Tensor, space: RowSpace) -> PlainOperand:
    """Returns a tensor that is equal on all ranks, with its values of now."""
    if tensor.is_inference() or tensor.nbytes > _MOST_COPIED_BYTES:
        return PlainOperand.of(tensor, tensor.detach())
    return PlainOperand.of(tensor, space.rank.copy_of(tensor))


def resident_operand(
    name: str, tensor: PartitionedTensor, space: RowSpace
) -> tuple[ResidentOperand, PartitionedTensor]:
    """Returns a tensor that is on the device, chunk by chunk, and its probe.

    Collective where a list of ids selected its rows, ``x + x[permutation]``: they are sent to the
    ranks of the rows of `space`.

    Raises:
        NotImplementedError: its rows are not those of `space`, nor of another space of the graph.
    """
    layout = tensor.layout
    base = layout
    while base.parent is not None and base.parent_rows is None:
        base = base.parent
    found = space.spaces.find(base)
    if found is None and base.same_rows(space.layout):
        found = space
        layout = _rebased(layout, base, space.layout)
    if found is None and layout.by_ids:
        moved = in_layout(tensor, space.layout)
        if moved is not None:
            tensor, layout, base, found = moved, space.layout, space.layout, space
    if found is None or not base.same_rows(found.layout):
        refuse(name, f"an argument has the rows of {tensor.layout}, not of {space.layout}")
    virtual = found.virtual_layout(found.probe, layout)
    local = tensor._local
    shape = list(local.shape)
    shape[tensor.partitioned_dim] = virtual.local_count
    probe = wrap(local.new_zeros(shape), virtual, tensor.partitioned_dim)
    if tensor.requires_grad:
        probe.requires_grad_()
    return ResidentOperand(tensor, found, version_of(tensor)), probe


def _rebased(layout: RowLayout, base: RowLayout, other: RowLayout) -> RowLayout:
    if layout is base:
        return other
    assert layout.parent is not None
    parent = _rebased(layout.parent, base, other)
    return parent.repeat(layout.repeats) if layout.repeats > 1 else parent.tile(layout.tiles)


def operand_space(operand: Operand) -> RowSpace | None:
    """Returns the space of an operand's rows; None where it has none in a pass."""
    if isinstance(operand, RowOperand):
        return operand.content.space
    return operand.space if isinstance(operand, ResidentOperand) else None


def recorded(content: Content, needs_grad: bool) -> OffloadedTensor:
    """Returns the tensor of recorded rows, with autograd's history where it needs gradients."""
    return with_history(content) if needs_grad else make_shell(content)


def change_in_place(
    handle: OffloadedTensor, content: Content, needs_grad: bool, before: Operand
) -> None:
    """Gives a tensor the rows of `content`, which are made of what it was.

    Args:
        handle: the tensor.
        content: a record of a function of it.
        needs_grad: whether gradients flow through the function.
        before: the operand of the record that is the tensor.
    """
    assert isinstance(before, RowOperand)
    if needs_grad:
        move_history(handle, content, before)
    else:
        torch.autograd.graph.increment_version(handle)
    handle._content = content
    handle._cell = Cell(content, needs_grad)


def _with_node(name: str) -> Callable[..., Any]:
    """The rule of a method that needs the tensor's own node of autograd."""
    function = getattr(Tensor, name)

    def run(x: OffloadedTensor, *args: Any) -> Any:
        if row_operand(x).identity is not x:
            refuse(name, "gradients do not flow through each recorded tensor")
        with torch._C.DisableTorchFunctionSubclass():
            return function(x, *args)

    return run


for _name in ("register_hook", "retain_grad", "register_post_accumulate_grad_hook"):
    RULES[getattr(Tensor, _name)] = _with_node(_name)


def refuse(name: str, reason: str) -> NoReturn:
    """Raises NotImplementedError with the reason and the way out."""
    raise NotImplementedError(
        f"{name}: {reason}; it is not implemented for rows that are larger than GPU memory: select "
        "rows first (x[mask]), or gather them on the CPU with x.full_tensor()"
    )


def _versions_of(tensor: Tensor) -> tuple[int, int]:
    local = tensor._local if isinstance(tensor, PartitionedTensor) else tensor
    if local.is_inference() or tensor.is_inference():
        return 0, 0
    return tensor._version, local._version
