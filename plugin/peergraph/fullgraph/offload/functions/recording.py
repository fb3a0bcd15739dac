"""Functions of offloaded tensors: those that compute each row from the same row are recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.functions.dry_runs import (
    DryRun,
    cache_dry_run,
    separate_probes,
    share_memory,
)
from peergraph.fullgraph.offload.functions.expanded_rows import expanded_dim, expanded_rows
from peergraph.fullgraph.offload.functions.gathering import in_graph
from peergraph.fullgraph.offload.gradients.segment import (
    keep_node,
    move_history,
    recorded,
    row_operand,
)
from peergraph.fullgraph.offload.programs.record import (
    Operand,
    PlainOperand,
    Record,
    ResidentOperand,
    RowOperand,
)
from peergraph.fullgraph.offload.tensor.offloaded_function import without_hooks
from peergraph.fullgraph.offload.tensor.offloaded_tensor import (
    Content,
    OffloadedTensor,
    detached,
)
from peergraph.fullgraph.offload.tensor.operations import (
    Operation,
    Slot,
    TorchModes,
    UncacheableArgumentError,
    key_of,
)
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.offload.tensor.virtual_rank import NeedsOtherRowsError
from peergraph.fullgraph.random.seeds import Seed
from peergraph.fullgraph.structure.edge_index import PartitionedEdgeIndex
from peergraph.fullgraph.structure.node_index import NodeIndex
from peergraph.fullgraph.tensor.nested import map_nested, tensors_in
from peergraph.fullgraph.tensor.parameters import check_parameters
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, is_written, wrap
from peergraph.fullgraph.tensor.registry import CHUNK_RULES, METHODS, method
from peergraph.fullgraph.tensor.selection import in_layout

# Functions that change running statistics in place.
_CHANGE_ARGUMENTS = {F.instance_norm, torch.instance_norm, F.batch_norm, torch.native_batch_norm}


@method("record")
def record(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Records a call that computes each row from the same row; runs others over all chunks.

    The function runs once, on few rows of a virtual rank. If it asks that rank for a collective it
    needs other rows: then it is reduced chunk by chunk, if its result is plain. Such dry runs of
    functions of rows are cached, so that they are not repeated in each epoch.

    Raises:
        NotImplementedError: the function needs other rows and is no reduction.
    """
    call = Call(func, args, kwargs)
    dry_run = call.cached_dry_run()
    if dry_run is not None:
        return call.finish_as(dry_run)
    try:
        result = call.run_on_probes()
    except NeedsOtherRowsError:
        return METHODS["reduce over chunks"](call)
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
        tensors = tensors_in((args, kwargs))
        first = next(t for t in tensors if isinstance(t, OffloadedTensor))
        self.space = first._content.space
        if any(_is_elsewhere(t, first) for t in tensors):
            args, kwargs = map_nested((args, kwargs), functools.partial(in_graph, space=self.space))
            tensors = tensors_in((args, kwargs))
        if func is not expanded_rows and any(expanded_dim(t, first) is not None for t in tensors):
            args, kwargs = map_nested((args, kwargs), functools.partial(_as_rows, like=first))
            tensors = tensors_in((args, kwargs))
        self.rank = self.space.rank
        check_parameters(tuple(t for t in tensors if type(t) is Parameter), self.rank.real)
        self.operands: list[Operand] = []
        self.tensors: list[Tensor] = []
        """The tensor of each operand."""
        self._kinds: list[Hashable] = []
        """What a dry run depends on, for each operand; None: a dry run with it is not cached."""
        self._make_probes: list[Callable[[], Tensor]] = []
        self._places: dict[int, int] = {}
        named = self.name.endswith("_") or func in _CHANGE_ARGUMENTS
        has_target = kwargs.get("inplace", False) or kwargs.get("out") is not None
        self.changes = named or has_target
        """Whether the function may change an argument in place."""
        self.args = map_nested(args, self._slot)
        self.kwargs = map_nested(kwargs, self._slot)
        self.modes = TorchModes.current(self.rank.device)
        self.seeds: Sequence[Seed] = ()
        self._key = self._find_key()

    @cached_property
    def probes(self) -> list[Tensor]:
        """The tensor of few rows in the place of each operand."""
        return separate_probes([make() for make in self._make_probes], self.tensors)

    def _find_key(self) -> Hashable:
        """Returns a key of all that the operation depends on; None if it is not called again."""
        if self.changes or self.func not in CHUNK_RULES:
            return None
        try:
            return self.func, key_of(self.args), key_of(self.kwargs), self.modes
        except UncacheableArgumentError:
            return None

    def _dry_run_key(self) -> Hashable:
        if self._key is None or None in self._kinds:
            return None
        return self._key, *self._kinds, torch.get_default_dtype()

    def cached_dry_run(self) -> DryRun | None:
        """Returns the results of an earlier call on equal probes, if there was one."""
        key = self._dry_run_key()
        dry_run: DryRun | None = None if key is None else self.space.spaces.dry_runs.get(key)
        return dry_run

    def run_on_probes(self) -> Any:
        """Returns the function's results on the probes."""
        if torch.is_inference_mode_enabled():  # it counts no changes
            with torch.inference_mode(False), torch.no_grad():
                return self.run_on_probes()
        self._versions = [_versions_of(probe) for probe in self.probes]
        # Functions have rules also in a backward pass that runs without them.
        seeds_of_call = self.rank.recording_seeds(self.seeds)
        with seeds_of_call as self.seeds, torch._C._EnableTorchFunction(), without_hooks():
            return self.func(
                *map_nested(self.args, self._probe), **map_nested(self.kwargs, self._probe)
            )

    def operation(self, changed: int | None = None) -> Operation:
        """Returns the call without its operands, of which it changes `changed` in place."""
        if self._key is None or changed is not None:
            return Operation(self.func, self.args, self.kwargs, self.modes, changed)
        operations = self.space.spaces.operations
        return operations.share(self._key, self.func, self.args, self.kwargs, self.modes)

    def finish(self, result: Any) -> Any:
        """Returns the result of the call as offloaded tensors in the places of probes."""
        changed = self.changed()
        if changed:
            return self._finish_in_place(changed, result)
        if isinstance(result, PartitionedTensor):
            dry_run = self._dry_run_of(result)
            key = self._dry_run_key()
            if key is not None and not self.seeds:
                cache_dry_run(self.space.spaces.dry_runs, key, dry_run)
            return self.finish_as(dry_run)
        record = Record(self.operation(), self.operands, self.seeds)
        by_output: dict[int, Tensor] = {}
        for index, output in enumerate(tensors_in(result)):
            if isinstance(output, PartitionedTensor) and id(output) not in by_output:
                dry_run = self._dry_run_of(output)
                by_output[id(output)] = self.finish_as(dry_run, record, index)
        return map_nested(result, lambda part: by_output.get(id(part), part))

    def finish_as(self, dry_run: DryRun, record: Record | None = None, index: int = 0) -> Tensor:
        """Returns a result of the call, as the dry run on probes describes it.

        Args:
            dry_run: of the result.
            record: of the call; None: it is made, for the only result.
            index: of the result.
        """
        if dry_run.is_operand is not None:
            return self.tensors[dry_run.is_operand]
        record = record or Record(self.operation(), self.operands, self.seeds)
        content = Content(self.space_of(dry_run.probe), dry_run.probe, record=record, output=index)
        result = recorded(content, dry_run.needs_grad, dry_run.is_leaf, bool(dry_run.aliases))
        for place in dry_run.aliases:
            tensor = self.tensors[place]
            assert isinstance(tensor, OffloadedTensor)
            tensor.note_alias(result)
            result._cell.aliases = tensor._cell.aliases
        return result

    def _dry_run_of(self, output: PartitionedTensor) -> DryRun:
        same = next((i for i, probe in enumerate(self.probes) if probe is output), None)
        aliases = tuple(
            place
            for place, (probe, tensor) in enumerate(zip(self.probes, self.tensors, strict=True))
            if isinstance(tensor, OffloadedTensor) and share_memory(probe, output)
        )
        return DryRun(detached(output), output.requires_grad, output.is_leaf, same, aliases)

    def changed(self) -> list[int]:
        """The operands that the function has changed in place."""
        if isinstance(self.func, OpOverload):  # called below the counting of versions
            arguments = self.func._schema.arguments
            written = {i for i, a in enumerate(arguments) if is_written(a)}
            names = {a.name for a in arguments if is_written(a)}
            targets = [value for i, value in enumerate(self.args) if i in written]
            targets += [value for name, value in self.kwargs.items() if name in names]
            return [value.place for value in targets if type(value) is Slot]
        return [
            place
            for place, (probe, version) in enumerate(zip(self.probes, self._versions, strict=True))
            if _versions_of(probe) != version
        ]

    def _finish_in_place(self, changed: list[int], result: Any) -> Any:
        [place] = changed if len(changed) == 1 else [-1]
        handle = self.tensors[place] if place >= 0 else None
        if not isinstance(handle, OffloadedTensor):
            refuse(self.name, "a tensor on the device is changed in place by an offloaded one")
        cell = handle._cell
        others = handle.other_aliases()
        on_device = any(not isinstance(other, OffloadedTensor) for other in others)
        if on_device or any(other._cell.whole is not (cell.whole or cell) for other in others):
            refuse(self.name, "another tensor is a view of the one that is changed in place")
        probe = self.probes[place]
        record = Record(self.operation(place), self.operands, self.seeds)
        assert isinstance(probe, PartitionedTensor)
        content = Content(self.space_of(probe), detached(probe), record=record)
        needs_grad = probe.requires_grad and torch.is_grad_enabled()
        change_in_place(handle, content, needs_grad, self.operands[place])
        for other in others:
            _change_alias(other, handle)
        for tensor in (handle, *others):
            tensor._cell.aliases, tensor._cell.whole = cell.aliases, cell.whole
        return handle if result is probe else result

    def space_of(self, output: PartitionedTensor) -> RowSpace:
        """Returns the rows that a result on the probes has."""
        layout = output.row_layout
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
            operand, kind, make_probe = self._operand(value)
            self.operands.append(operand)
            self.tensors.append(value)
            self._kinds.append(kind)
            self._make_probes.append(make_probe)
        return Slot(place)

    def _operand(self, tensor: Tensor) -> tuple[Operand, Hashable, Callable[[], Tensor]]:
        """Returns what stands for a tensor argument: its operand, its part of the key under which
        a dry run is cached, and a function that makes the few rows of it that a dry run reads.
        """
        changes = self.changes  # functions that make probes must not refer to `self`
        if isinstance(tensor, OffloadedTensor):
            probe = tensor._content.probe
            local = probe._local
            kind: Hashable = (
                *(local.shape, local.stride(), local.dtype),
                *(probe.row_layout, probe.partitioned_dim, tensor.requires_grad),
            )
            return (
                *(row_operand(tensor), kind),
                lambda: _changeable(tensor, probe_of(tensor), changes),
            )
        if isinstance(tensor, NodeIndex):
            tensor = tensor.shared_ids()
        if isinstance(tensor, PartitionedTensor):
            operand, layout = resident_operand(self.name, tensor, self.space)
            of_device = operand.tensor
            dim, local = of_device.partitioned_dim, of_device._local
            shape = *local.shape[:dim], *local.shape[dim + 1 :]
            kind = shape, local.dtype, layout, dim, of_device.requires_grad
            return (
                *(operand, kind),
                lambda: _changeable(tensor, resident_probe(of_device, layout), changes),
            )
        if isinstance(tensor, PartitionedEdgeIndex):
            refuse(self.name, "an argument is a list of edges")
        plain = PlainOperand.of(tensor), _dry_run_key_of_plain(tensor)
        return *plain, lambda: _changeable(tensor, tensor, changes)


def _is_elsewhere(tensor: Tensor, first: OffloadedTensor) -> bool:
    """Whether a tensor has rows of another graph."""
    if not isinstance(tensor, OffloadedTensor):
        return False
    return tensor._content.space.spaces is not first._content.space.spaces


def _as_rows(tensor: Any, like: OffloadedTensor) -> Any:
    """Returns a plain tensor that repeats one row as offloaded rows, and others as they are."""
    dim = expanded_dim(tensor, like)
    if dim is None:
        return tensor
    return record(expanded_rows, (tensor.narrow(dim, 0, 1), like.detach(), dim), {})


def _dry_run_key_of_plain(tensor: Tensor) -> Hashable:
    """Returns what a dry run depends on; None for a subclass of Tensor, or without strides."""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.device


def _changeable(tensor: Tensor, probe: Tensor, changes: bool) -> Tensor:
    """Returns a probe, or a copy of it where the function `changes` arguments such as `tensor`."""
    if not changes or (tensor.requires_grad and tensor.is_leaf):
        return probe  # A leaf that needs gradients cannot be changed in place.
    with torch.enable_grad():
        return probe.clone() if tensor.requires_grad or probe is tensor else probe


def probe_of(handle: OffloadedTensor) -> PartitionedTensor:
    """Returns a tensor of few rows in the place of an offloaded one."""
    stored = handle._content.probe
    probe = wrap(stored._local.detach(), stored.row_layout, stored.partitioned_dim)
    if handle.requires_grad:
        probe.requires_grad_()
    return probe


def resident_operand(
    name: str, tensor: PartitionedTensor, space: RowSpace
) -> tuple[ResidentOperand, RowLayout]:
    """Returns a tensor that is on the device, chunk by chunk, and the layout of its probe.

    Collective where a list of ids selected its rows, ``x + x[permutation]``: they are sent to the
    ranks of the rows of `space`.

    Raises:
        NotImplementedError: its rows are not those of `space`, nor of another space of the graph.
    """
    layout = tensor.row_layout
    base = layout.base
    own_space = space.spaces.find(base)
    if own_space is None and base.same_rows(space.row_layout):
        own_space = space
        layout = layout.rebased(space.row_layout)
    if own_space is None and layout.by_ids:
        moved = in_layout(tensor, space.row_layout)
        if moved is not None:
            tensor, layout, base, own_space = moved, space.row_layout, space.row_layout, space
    if own_space is None or not base.same_rows(own_space.row_layout):
        refuse(name, f"an argument has the rows of {tensor.row_layout}, not of {space.row_layout}")
    return ResidentOperand.of(tensor, own_space), layout.rebased(own_space.probe)


def resident_probe(tensor: PartitionedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns a tensor of few rows in the place of one on the device.

    Args:
        tensor: the one on the device.
        layout: of the probe.
    """
    local = tensor._local
    shape = list(local.shape)
    shape[tensor.partitioned_dim] = layout.local_count
    probe = wrap(local.new_zeros(shape), layout, tensor.partitioned_dim)
    if tensor.requires_grad:
        probe.requires_grad_()
    return probe


def operand_space(operand: Operand) -> RowSpace | None:
    """Returns the space of an operand's rows; None where it has none in a pass."""
    if isinstance(operand, RowOperand):
        return operand.content.space
    return operand.space if isinstance(operand, ResidentOperand) else None


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
    keep_node(before)
    if needs_grad:
        move_history(handle, content)
    else:
        torch.autograd.graph.increment_version(handle)
    handle._replace_rows(content, needs_grad)


def _change_alias(alias: OffloadedTensor, handle: OffloadedTensor) -> None:
    """Gives a tensor the rows of another; its history stays, as that of one changed by
    ``x.data``.
    """
    values: OffloadedTensor = record(Tensor.detach, (handle,), {})
    keep_node(row_operand(alias))
    torch.autograd.graph.increment_version(alias)
    alias._replace_rows(values._content, needs_grad=False)


@method("refuse offloaded")
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
