"""Calls of torch's operators, with the inputs that torch's own tests make for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

# Their results are random numbers, or memory as it is.
_RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "exponential", "geometric")
_RANDOM += ("cauchy", "empty", "rrelu", "dropout", "fractional", "dot_product_attention")
# Its gradient depends on which of its results others use: only one of three has one alone.
_UNDETERMINED = ("native_group_norm",)
_MOST_ROWS, _MOST_ELEMENTS = 60, 5000


class _Place(int):
    """The number of a tensor in the arguments of a call."""


@dataclass
class Call:
    """A call of an operator.

    `tensors` are its arguments with a row for each node: the first, or all of that size.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    tensors: list[Tensor]
    changes_first: bool
    needs_grad: bool

    @property
    def num_rows(self) -> int:
        return self.tensors[0].shape[0]

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Returns results and gradients of the call with other tensors in the places of its own."""
        leaves = [t.requires_grad_() for t in tensors if self.needs_grad and t.is_floating_point()]
        used = list(tensors)
        if self.changes_first:
            used[0] = used[0].clone()
        first, args, kwargs = _with_tensors(self.arguments, used)
        result = self.function(first, *args, **kwargs)
        results = _leaves_of(used[0] if self.changes_first else result)
        losses = [
            (x * x.detach().cos()).sum()
            for x in results
            if isinstance(x, Tensor) and x.requires_grad and x.is_floating_point()
        ]
        if self.needs_grad and losses:
            sum(losses).backward()
            results += [leaf.grad for leaf in leaves]
        return results


def operators(part: int = 0, parts: int = 1) -> list[Any]:
    """Every `parts`-th operator that gives the same result twice.

    In a process of its own: the import changes flags of torch that other tests set.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    known = sorted(op_db, key=lambda op: (op.name, op.variant_test_name))
    return [op for op in known if not any(name in op.name for name in _RANDOM + _UNDETERMINED)][
        part::parts
    ]


def calls(op: Any, dtype: torch.dtype, samples: int, device: str) -> Iterator[Call]:
    """Returns calls of an operator with its first samples that have rows, on "cpu" or "cuda"."""
    if dtype not in op.supported_dtypes(device):
        return
    torch.manual_seed(1)
    inputs = op.sample_inputs(device, dtype, requires_grad=False)
    for number, sample in enumerate(islice(filter(_has_rows, inputs), samples)):
        arguments = sample.input, sample.args, sample.kwargs
        rows = _first_tensor(sample.input).shape[0]
        few: list[Tensor] = []
        of_first = _take_tensors(arguments[0], rows, few), *arguments[1:]
        many: list[Tensor] = []
        of_all = _take_tensors(arguments, rows, many)
        variants = [(of_first, few)] + [(of_all, many)] * (len(many) > len(few))
        for places, tensors in variants:
            needs_grad = dtype.is_floating_point and op.supports_autograd
            title = f"{op.name} {op.variant_test_name} sample {number}, {len(tensors)} of rows"
            yield Call(title, op.op, places, tensors, False, needs_grad)
            if op.inplace_variant is not None and isinstance(sample.input, Tensor):
                yield Call(
                    f"{title}, in place", op.inplace_variant, places, tensors, True, needs_grad
                )


def _has_rows(sample: Any) -> bool:
    first = _first_tensor(sample.input)
    if first is None or first.dim() < 1 or first.layout != torch.strided:
        return False
    return 1 <= first.shape[0] <= _MOST_ROWS and 0 < first.numel() <= _MOST_ELEMENTS


def _first_tensor(value: Any) -> Tensor | None:
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None


def _take_tensors(value: Any, rows: int, tensors: list[Tensor]) -> Any:
    """Returns arguments with places instead of the tensors of `rows` rows, which it appends."""
    if type(value) is Tensor and value.dim() and value.shape[0] == rows:
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if type(value) in (tuple, list):
        return type(value)(_take_tensors(part, rows, tensors) for part in value)
    if type(value) is dict:
        return {key: _take_tensors(part, rows, tensors) for key, part in value.items()}
    return value


def _with_tensors(value: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value]
    if type(value) in (tuple, list):
        return type(value)(_with_tensors(part, tensors) for part in value)
    if type(value) is dict:
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    return value


def _leaves_of(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in _leaves_of(part)]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves_of(part)]
    return [value]
