"""The rows of a tensor with the user's row numbers, for operations that draw numbers by row."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from peergraph.fullgraph.layout.ranks import Ranks
from peergraph.fullgraph.random.kernels import dropout_rows, fill_random, keep_rows
from peergraph.fullgraph.random.seeds import Seed, shared_seed
from peergraph.fullgraph.tensor.arguments import not_implemented
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap
from peergraph.fullgraph.tensor.registry import Rule, rule

_Function = TypeVar("_Function", bound=Rule)

RANDOM_OPS: dict[OpOverload, Rule] = {}
"""ATen overloads, and the rules that serve them on partitioned tensors and in `keyed_random`."""


def random_op(*overloads: OpOverload) -> Callable[[_Function], _Function]:
    """Registers the decorated rule, which serves partitioned and plain tensors."""

    def register(replacement: _Function) -> _Function:
        RANDOM_OPS.update(dict.fromkeys(overloads, replacement))
        return rule(*overloads)(replacement)

    return register


def overloads(packet: OpOverloadPacket, *names: str) -> list[OpOverload]:
    """Returns the overloads of an operation that the installed torch has."""
    return [getattr(packet, name) for name in names if name in packet.overloads()]  # type: ignore[no-untyped-call]


_KERNEL_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Rows:
    """A tensor as rows, the partitioned dimension first.

    A plain tensor has rows 0 .. n-1, or `ids`. So a plain tensor of one process gets the numbers
    that a partitioned tensor of the same values gets at any number of ranks. All results are
    without autograd's history.
    """

    def __init__(self, x: Tensor, ids: Tensor | None = None) -> None:
        self._x = x
        if isinstance(x, PartitionedTensor):
            self.group: Ranks | None = x.row_layout.group
            self.dim, local = x.partitioned_dim, x._local
            self.ids = x.row_layout.positions
        else:
            self.group, self.dim = None, 0
            local = x if x.dim() else x.view(1)
            self.ids = torch.arange(local.shape[0], device=x.device) if ids is None else ids
        self.local = local

    def seed(self, generator: torch.Generator | None = None) -> Seed:
        """Draws the seed of an operation: see :func:`shared_seed`."""
        return shared_seed(self.group, generator)

    def draw(self, distribution: str, seed: Seed, dtype: torch.dtype | None = None) -> Tensor:
        """One number for each element, laid out as the local rows are: see :func:`fill_random`.

        Args:
            dtype: a floating-point one; by default the tensor's, or float32 for integers.
        """
        drawn_dtype = dtype or self._x.dtype
        drawn_dtype = drawn_dtype if drawn_dtype in _KERNEL_DTYPES else torch.float32
        number, device_seed = self._seeds(seed)
        return self._back(
            fill_random(distribution, number, self.ids, self._width(), drawn_dtype, device_seed)
        )

    def keep(self, p: float, seed: Seed, dtype: torch.dtype | None = None) -> Tensor:
        """0 with probability `p`, else 1, for each element, laid out as the local rows are."""
        result_dtype = dtype or self._x.dtype
        number, device_seed = self._seeds(seed)
        kernel_dtype = result_dtype if result_dtype in _KERNEL_DTYPES else torch.float32
        mask = keep_rows(p, number, self.ids, self._width(), kernel_dtype, device_seed)
        return self._back(mask).to(result_dtype)

    def keep_channels(self, p: float, seed: Seed, dims: int) -> Tensor:
        """As :meth:`keep`, with one value for elements that agree in the first `dims` dimensions.

        The result broadcasts with the tensor and is partitioned as it is.
        """
        if self.dim >= dims:
            not_implemented("feature dropout", f"rows are partitioned along dimension {self.dim}")
        kept_shape = list(self.local.shape[:dims])
        columns = prod(kept_shape) // max(kept_shape.pop(self.dim), 1)
        number, device_seed = self._seeds(seed)
        mask = keep_rows(p, number, self.ids, columns, self._x.dtype, device_seed)
        mask = mask.view(-1, *kept_shape).movedim(0, self.dim)
        return self.wrap(mask.reshape(*mask.shape, *[1] * (self.local.dim() - dims)))

    def dropout(self, p: float, seed: Seed) -> Tensor:
        """The local rows with elements dropped out: see :func:`dropout_rows`."""
        rows = self._rows_first().contiguous()
        number, device_seed = self._seeds(seed)
        result = dropout_rows(rows, p, number, self.ids, device_seed)
        return result.movedim(0, self.dim) if self.dim else result

    def wrap(self, local: Tensor) -> Tensor:
        """Returns local rows as a tensor of the same kind."""
        if isinstance(self._x, PartitionedTensor):
            return wrap(local, self._x.row_layout, self.dim)
        return local if self._x.dim() else local.view(())

    def _seeds(self, seed: Seed) -> tuple[int, Tensor | None]:
        """The seed as kernels take it: a number, or a tensor on the device of the rows."""
        if not isinstance(seed, Tensor):
            return seed, None
        if seed.device != self.local.device:
            raise RuntimeError(
                f"a random operation on {self.local.device} is in a step that {seed.device} replays"
            )
        return 0, seed

    def _width(self) -> int:
        return prod(self._rows_first().shape[1:])

    def _back(self, rows: Tensor) -> Tensor:
        return rows.view(self._rows_first().shape).movedim(0, self.dim)

    def _rows_first(self) -> Tensor:
        return self.local.movedim(self.dim, 0) if self.dim else self.local
