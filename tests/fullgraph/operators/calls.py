"""Calls of torch's operators, with the inputs that torch's own tests make for them.

Of each call, some of the tensors have a row for each node and are partitioned; the others are
plain. Who needs gradients, and how plain tensors are made, differ between the calls of a sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.fullgraph.operators.operator_list import UNCHECKED, argument_names
from tests.fullgraph.operators.plain_forms import OF_ALL_ROWS, PLAIN_FORMS

_MOST_ROWS, _MOST_ELEMENTS = 60, 5000
_MOST_NODE_COUNTS = 3  # of different sizes of the first dimensions of a sample's tensors
_MOST_TENSORS = 3  # of which all subsets are partitioned; of more: each, all but each, and all


class _Place(int):
    """The number of a tensor in the arguments of a call."""


class Extent(NamedTuple):
    """Which calls of an operator are compared."""

    samples: int
    """Of each operator."""
    is_full: bool = False
    """Whether all forms of calls, of gradients and of plain tensors are; else the first of each."""
    seed: int = 1
    """Of the numbers in the samples."""


@dataclass
class Call:
    """A call of an operator."""

    name: str
    operator: str
    """The operator's name."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """The first, the others, and those by name, with places instead of tensors."""
    tensors: list[Tensor]
    """In these places; of plain ones the leaves that they are made from."""
    partitioned: frozenset[int]
    """Places of tensors with a row for each node, which are partitioned."""
    needing: frozenset[int]
    """Places of tensors that need gradients."""
    plain_form: str
    """How the plain tensors of all rows are made: see :data:`PLAIN_FORMS`."""
    changes_first: bool

    @property
    def num_rows(self) -> int:
        return self.tensors[min(self.partitioned)].shape[0]

    def run(self, rows: Callable[[Tensor], Tensor]) -> list[Any]:
        """Returns results and gradients of the call.

        Args:
            rows: returns a tensor that is partitioned, of all rows.
        """
        used, leaves = [], []
        for place, tensor in enumerate(self.tensors):
            is_rows = place in self.partitioned
            if not is_rows and tensor.dim() and tensor.shape[0] == self.num_rows:
                leaf, value = PLAIN_FORMS[self.plain_form](tensor.clone(), place in self.needing)
            else:
                leaf = value = rows(tensor.clone()) if is_rows else tensor.clone()
                leaf.requires_grad_(place in self.needing)
            leaves += [leaf] if place in self.needing else []
            used.append(value)
        if self.changes_first:
            used[0] = used[0].clone()
        first, args, kwargs = tree_map_only(_Place, used.__getitem__, self.arguments)
        result = self.function(first, *args, **kwargs)
        results = tree_leaves(used[0] if self.changes_first else result)
        losses = [
            (x * x.detach().cos()).sum()
            for x in results
            if isinstance(x, Tensor) and x.requires_grad and x.is_floating_point()
        ]
        if losses:
            sum(losses).backward()
            results += [leaf.grad for leaf in leaves]
        return results


def calls(op: Any, dtype: torch.dtype, extent: Extent, device: str) -> Iterator[Call]:
    """Returns calls of an operator with its first samples that have rows, on "cpu" or "cuda"."""
    if dtype not in op.supported_dtypes(device):
        return
    torch.manual_seed(extent.seed)
    random.seed(extent.seed)
    np.random.seed(extent.seed)  # noqa: NPY002  (torch's tests draw from it)
    # Not `op.sample_inputs`, which notes the lines of torch's tests that inputs come from.
    inputs = op.sample_inputs_func(op, torch.device(device), dtype, False)
    for number, sample in enumerate(islice(filter(_has_rows, inputs), extent.samples)):
        tensors: list[Tensor] = []
        arguments = _take_tensors((sample.input, sample.args, sample.kwargs), tensors)
        shapes = " ".join(str(list(tensor.shape)).replace(" ", "") for tensor in tensors)
        can_change = isinstance(sample.input, Tensor)
        for form, function in _call_forms(op, extent, can_change):
            for partitioned in _subsets(tensors):
                rest = [
                    place
                    for place, tensor in enumerate(tensors)
                    if place not in partitioned
                    and tensor.dim()
                    and tensor.shape[0] == tensors[min(partitioned)].shape[0]
                ]
                plain_forms = ["whole"]
                if extent.is_full and rest and form in ("function", "in place"):
                    is_checked = not any(name in op.name for name in UNCHECKED)
                    plain_forms = list(PLAIN_FORMS if is_checked else OF_ALL_ROWS)
                for plain_form in plain_forms:
                    for needing in _needing(op, dtype, tensors, partitioned, extent):
                        title = f"{op.name} {op.variant_test_name} sample {number}, {form}, "
                        title += f"rows {sorted(partitioned)} of {shapes}, "
                        title += f"gradients of {sorted(needing)}, {plain_form}"
                        yield Call(
                            *(title, op.name, function, arguments, tensors, partitioned, needing),
                            *(plain_form, form == "in place"),
                        )


def _call_forms(
    op: Any, extent: Extent, can_change: bool
) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "function", op.op
    if op.inplace_variant is not None and can_change:
        yield "in place", op.inplace_variant
    if not extent.is_full:
        return
    method = op.method_variant
    if method is not None and can_change and method is not op.op:
        yield "method", method
    names = argument_names(op)
    if names:
        yield (
            "by name",
            lambda *args, **kwargs: op.op(**dict(zip(names, args, strict=False)), **kwargs),
        )
    if op.supports_out:
        yield "plain out", lambda *args, **kwargs: _with_out(op.op, args, kwargs)


def _with_out(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns the result of a function that writes it into a plain tensor."""
    with torch.no_grad():
        shape = function(*args, **kwargs)
        if not isinstance(shape, Tensor):
            raise TypeError("several results")
        out = torch.full(shape.shape, 1, dtype=shape.dtype, device=shape.device)
        function(*args, **kwargs, out=out)
        return out


def _subsets(tensors: Sequence[Tensor]) -> Iterator[frozenset[int]]:
    """Yields places of tensors of one number of rows."""
    by_rows: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if _may_be_rows(tensor):
            by_rows.setdefault(tensor.shape[0], []).append(place)
    for places in islice(by_rows.values(), _MOST_NODE_COUNTS):
        count = len(places)
        sizes = set(range(1, count + 1)) if count <= _MOST_TENSORS else {1, count - 1, count}
        for size in sizes:
            yield from map(frozenset, combinations(places, size))


def _needing(
    op: Any, dtype: torch.dtype, tensors: Sequence[Tensor], partitioned: frozenset[int], extent: Any
) -> Iterator[frozenset[int]]:
    """Yields places of tensors that need gradients: all, the partitioned ones, and the plain."""
    if not op.supports_autograd:
        yield frozenset()
        return
    able = frozenset(i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex())
    sets = [able, able & partitioned, able - partitioned] if extent.is_full else [able]
    yield from dict.fromkeys(sets)


def _may_be_rows(tensor: Tensor) -> bool:
    if tensor.dim() < 1 or tensor.layout != torch.strided:
        return False
    return 1 <= tensor.shape[0] <= _MOST_ROWS and 0 < tensor.numel() <= _MOST_ELEMENTS


def _has_rows(sample: Any) -> bool:
    tensors: list[Tensor] = []
    _take_tensors((sample.input, sample.args, sample.kwargs), tensors)
    return any(map(_may_be_rows, tensors))


def _take_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """Returns arguments with places instead of their tensors, which it appends."""

    def take(tensor: Tensor) -> _Place:
        tensors.append(tensor)
        return _Place(len(tensors) - 1)

    return tree_map_only(Tensor, take, value)
