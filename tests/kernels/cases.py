"""What launches every kernel, on inputs so small that a checker of all accesses takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Run = Callable[[torch.device], Iterator[Tensor]]


@dataclass(frozen=True)
class Case:
    """Work for one or several kernels.

    Attributes:
        run: does it on a device and yields the results.
        kernels: those that are launched on a GPU.
        exact: whether the CPU has the same results to the bit.
    """

    run: Run
    kernels: frozenset[str]
    exact: bool


CASES: dict[str, Case] = {}


def case(*kernels: str, exact: bool = True) -> Callable[[Run], Run]:
    """Adds the function to :data:`CASES`, under its name."""

    def add(run: Run) -> Run:
        CASES[run.__name__] = Case(run, frozenset(kernels), exact)
        return run

    return add
