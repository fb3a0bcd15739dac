"""Plain tensors in a backward pass: autograd has saved the tensors themselves, not their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.offload.programs.record import PlainOperand, distinct_values


class PlainInputs:
    """The plain inputs of a program that is run again and differentiated.

    Functions run again with the values of their records. What their gradients read of a plain
    tensor are the values of now, as on the device: there autograd saves the tensor by reference.

    Args:
        operands: the program's inputs; others are ignored.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        plain = {
            place: operand
            for place, operand in enumerate(operands)
            if isinstance(operand, PlainOperand) and operand.values.layout == torch.strided
        }
        self.changed = [place for place, operand in plain.items() if operand.is_changed]
        """The places of tensors that have changed: autograd refuses those that it has saved."""
        self._now = [operand.memory for operand in plain.values()]
        self._recorded = [distinct_values(operand.values) for operand in plain.values()]
        self._inputs = [recorded.clone() for recorded in self._recorded]
        self._by_operand = dict(zip(map(id, plain.values()), self._inputs, strict=True))

    def value(self, operand: PlainOperand) -> Tensor:
        """Returns the values of the record, in memory that :meth:`as_now` writes."""
        memory = self._by_operand.get(id(operand))
        # Another counter of versions: autograd does not see that the memory is written.
        return operand.values if memory is None else memory.data.expand(operand.values.shape)

    @contextmanager
    def as_now(self) -> Iterator[None]:
        """Within the context, the memory of the inputs has the values of now."""
        if not self._inputs:
            yield
            return
        torch._foreach_copy_(self._inputs, self._now)
        try:
            yield
        finally:
            torch._foreach_copy_(self._inputs, self._recorded)
