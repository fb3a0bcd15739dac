"""A partitioned tensor whose rows are not on the device: stored elsewhere, or to be computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.tensor.row_space import RowSpace
from peergraph.fullgraph.structure.node_index import (
    SHAPE_FUNCTIONS,
    NodeIndex,
    node_selection,
)
from peergraph.fullgraph.tensor.arguments import of_rule
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import METHODS, OFFLOADED_RULES
from peergraph.fullgraph.tensor.transforms import check_transforms
from peergraph.without_memory import make_without_memory

_DisableTorchFunction = torch._C.DisableTorchFunctionSubclass


class ChangeMark:
    """Whether a tensor has been changed in place after it had certain rows."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class Content:
    """The rows of an offloaded tensor: in a store, or as a record of how they are computed.

    Args:
        space: the rows that are cut in chunks.
        probe: a tensor of few rows with the layout of a virtual rank: its shape, strides, dtype and
            partitioned dimension are those of the rows.
        store: the rows, [local rows, *features]; or None.
        record: what computes the rows, a :class:`Record` of operands with such contents; or None.
        output: which result of `record`.
    """

    __slots__ = (
        "change_mark",
        "gradient_in_order",
        "is_input",
        "is_passed",
        "is_source",
        "is_temporary",
        "keeps",
        "must_store",
        "output",
        "probe",
        "record",
        "selected",
        "space",
        "store",
    )

    def __init__(
        self,
        space: RowSpace,
        probe: PartitionedTensor,
        *,
        store: RowStore | None = None,
        record: Any = None,
        output: int = 0,
    ) -> None:
        if probe._local.is_inference():  # torch counts no changes of such tensors
            with torch.inference_mode(False):
                probe = wrap(probe._local.clone(), probe.row_layout, probe.partitioned_dim)
        self.space = space
        self.probe = probe
        self.store = store
        self.record = record
        self.output = output
        self.change_mark = ChangeMark()
        """Set when the tensor that has the rows gets others in place."""
        self.keeps = False
        """Whether rows are stored when they are first computed."""
        self.is_input = False
        """Whether the rows are a table of the user's, such as features, which each epoch reads."""
        self.is_passed = False
        """Whether gradients flow through the record, and not to the tensor that has the rows."""
        self.is_source = False
        """Whether sums over neighbours read the rows, in the order of the edges."""
        self.is_temporary = False
        """Whether the rows are read once only, for a sum that is kept for all epochs."""
        self.must_store = False
        """Whether rows are stored before others are computed from them."""
        self.gradient_in_order = False
        """Whether rows of the gradient are read in order only, and never as sources of a sum."""
        self.selected: Any = None
        """Where only selected rows are not zero: these rows, a :class:`SelectedOperand`."""

    @property
    def row_layout(self) -> RowLayout:
        """The rows of all ranks."""
        return self.space.real_layout(self.probe.row_layout)

    @property
    def is_storable(self) -> bool:
        """Whether rows are the first dimension, and each of a row of the space."""
        return self.probe.row_layout is self.space.probe and self.probe.partitioned_dim == 0

    @property
    def is_on_device(self) -> bool:
        """Whether the rows are in a store on the device."""
        return self.store is not None and self.store.in_place

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of a row, of storable contents."""
        return tuple(self.probe._local.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.probe._local.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, of storable contents."""
        return math.prod(self.features) * self.dtype.itemsize

    def set_store(self, store: RowStore) -> None:
        """The rows are in a store now; what computed them is not needed any more."""
        self.store = store
        self.record = None

    def __repr__(self) -> str:
        where = f"in {self.store.tier} memory" if self.store is not None else "to be computed"
        return f"{tuple(self.probe.shape)}, {where}"


class Cell:
    """The rows of an offloaded tensor from one change in place to the next.

    Args:
        content: its rows.
        needs_grad: whether gradients flow through the functions that were recorded.
    """

    __slots__ = ("aliases", "content", "identity", "needs_grad", "whole")

    def __init__(self, content: Content, needs_grad: bool) -> None:
        self.content = content
        self.needs_grad = needs_grad
        self.identity: OffloadedTensor | None = None
        """The tensor whose autograd node gets the gradient; None: the record is differentiated."""
        self.aliases: list[ref[Any]] = []
        """Tensors that would share memory with this one if they were on the device, and the memory
        of ranges of its rows that are."""
        self.whole: Whole | None = None
        """What aliases have in common whose values are all of this one's."""


class Whole:
    """What a tensor and its detached aliases have in common."""


class OffloadedTensor(PartitionedTensor):
    """A partitioned tensor whose rows are stored outside of the device or not computed yet.

    Functions that compute each row from the same row are recorded; the record is evaluated chunk by
    chunk when rows are needed: as sources of an aggregation, for a selection, for a sum. Such
    results, and those of functions over all rows, are what they are for other partitioned tensors.
    Gradients are offloaded tensors, too. A function that needs other rows and has no rule raises
    NotImplementedError.
    """

    __slots__ = ("_cell", "_content")

    _cell: Cell
    _content: Content
    is_offloaded = True

    @property
    def _local(self) -> NoReturn:  # type: ignore[override]
        raise NotImplementedError(
            "the rows of an offloaded tensor are not on the device: select rows (x[mask], x[ids]) "
            "or gather them on the CPU with x.full_tensor()"
        )

    def _replace_rows(self, content: Content, needs_grad: bool) -> None:
        """Gives the tensor other rows, as a change in place does."""
        self._content.change_mark.is_set = True
        self._content = content
        self._cell = Cell(content, needs_grad)

    def note_alias(self, other: Any) -> None:
        """Notes that the rows of `other`, a tensor or memory, are rows of this tensor."""
        aliases = self._cell.aliases
        if not aliases:
            aliases.append(ref(self))
        aliases[:] = [alias for alias in aliases if alias() is not None]
        aliases.append(ref(other))

    def other_aliases(self) -> list[Any]:
        """Returns what else has these rows, or a part of them, and is in use."""
        others = (alias() for alias in self._cell.aliases)
        return [other for other in others if other is not None and other is not self]

    def change_token(self) -> Callable[[], object]:
        """Returns what returns equal values as long as the rows are not changed in place."""
        return lambda: self._content

    def to_local(self) -> Tensor:
        """Returns this rank's rows on the CPU. Not differentiable; collective.

        Raises:
            NotImplementedError: a gradient would be lost; call it under torch.no_grad().
        """
        if self.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                "to_local: gradients do not flow through local rows of a tensor that is larger "
                "than GPU memory: select rows (x[mask]), or detach the tensor first"
            )

        rows: Tensor = METHODS["offloaded to_local"](self)
        return rows

    def full_tensor(self) -> Tensor:
        """Returns all rows in the user's order on the CPU. Differentiable; collective."""
        rows: Tensor = METHODS["offloaded full_tensor"](self)
        return rows

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with _DisableTorchFunction():
            gradient = ", requires_grad=True" if self.requires_grad else ""
            return f"OffloadedTensor({self._content}, {self._content.dtype}{gradient})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_transforms()
        if func in SHAPE_FUNCTIONS or func in _OF_AUTOGRAD:
            with _DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        if NodeIndex in types:
            selected = node_selection(func, args, kwargs or {})
            if selected is not None:
                x, dim, index = selected
                return index.select_rows(x, dim)
        if isinstance(func, torch.ScriptMethod):
            raise NotImplementedError(
                "torch.jit.script: offloaded rows do not see the parameters that a scripted module "
                "reads: call the module as it was before it was scripted"
            )
        rule = OFFLOADED_RULES.get(func)
        if rule is not None:
            return rule(*args, **of_rule(func, kwargs)) if kwargs else rule(*args)
        return METHODS["record"](func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        # Reached from autograd (sums of gradients, detached aliases) and from compiled code.
        return METHODS["record"](func, args, kwargs or {})


_OF_AUTOGRAD = {
    *(Tensor.requires_grad_, Tensor.requires_grad.__set__),  # type: ignore[attr-defined]
    *(Tensor.grad.__set__, Tensor.backward, Tensor.__dir__),  # type: ignore[union-attr]
    torch.autograd.backward,
}
"""Functions that read or change a tensor's place in autograd's graph."""


def make_shell(content: Content, needs_grad: bool = False) -> OffloadedTensor:
    """Returns a tensor of these rows, without autograd's history.

    Args:
        content: the rows.
        needs_grad: whether the caller gives it a history.
    """
    probe = content.probe
    # It may stand for rows that were recorded outside of inference mode, for their gradients.
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        result = make_without_memory(
            OffloadedTensor,
            probe.shape,
            strides=probe.stride(),
            dtype=probe.dtype,
            device=probe.device,
        )
    result.row_layout = content.row_layout
    result.partitioned_dim = probe.partitioned_dim
    result._content = content
    result._cell = Cell(content, needs_grad)
    return result


def detached(x: Tensor) -> PartitionedTensor:
    """Returns a partitioned tensor of the device without autograd's history."""
    assert isinstance(x, PartitionedTensor)
    return wrap(x._local.detach(), x.row_layout, x.partitioned_dim)


def make_probe(space: RowSpace, features: Sequence[int], dtype: torch.dtype) -> PartitionedTensor:
    """Returns a tensor of few rows of a space."""
    rows = torch.zeros((space.probe.local_count, *features), dtype=dtype, device=space.rank.device)
    return wrap(rows, space.probe, 0)


def from_store(space: RowSpace, store: RowStore) -> OffloadedTensor:
    """Returns the tensor whose rows are in a store, which is not changed from now on."""
    probe = make_probe(space, store.features, store.dtype)
    return make_shell(Content(space, probe, store=store))
