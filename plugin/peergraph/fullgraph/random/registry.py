"""The operations of torch that draw numbers by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._ops import OpOverload, OpOverloadPacket

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
