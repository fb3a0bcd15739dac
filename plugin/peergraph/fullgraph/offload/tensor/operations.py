"""Operations: what is called, in which modes; those of each epoch are the same objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

_MOST_OPERATIONS = 1024
_AS_THEY_ARE = {bool, int, str, type(None), type(...), torch.dtype, torch.device, torch.layout}


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for an operand within recorded arguments."""

    place: int


class TorchModes(NamedTuple):
    """The modes of torch in which a call was recorded: gradients and autocast."""

    grad: bool
    autocast: tuple[bool, torch.dtype, str]

    @classmethod
    def current(cls, device: torch.device) -> TorchModes:
        """Returns the modes of now."""
        kind = device.type
        cast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), kind
        return cls(torch.is_grad_enabled(), cast)

    def are_current(self) -> bool:
        """Returns whether torch's modes are these, so that a replay has none to enter."""
        if self.autocast[0] or torch.is_autocast_enabled(self.autocast[2]):
            return False
        return self.grad or not torch.is_grad_enabled()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within the context, autocast is as it was; gradients are off where they were off."""
        enabled, dtype, kind = self.autocast
        with ExitStack() as stack:
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(
                    torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False)
                )
            if not self.grad and torch.is_grad_enabled():
                stack.enter_context(torch.no_grad())
            yield


class Operation:
    """A call of a function without its operands: what is called, and in which modes.

    Args:
        func: what was called.
        args, kwargs: its arguments, with a Slot in the place of each operand.
        modes: of torch at the time.
        changed: the operand that the function changes in place, which becomes the only result; or
            None.
    """

    __slots__ = ("args", "changed", "func", "kwargs", "modes", "programs")

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: TorchModes,
        changed: int | None = None,
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.modes = modes
        self.changed = changed
        self.programs: dict[Any, Any] | None = None
        """Programs that end with this operation, by all that they are made of; None: the operation
        is that of one record only."""


class UncacheableArgumentError(Exception):
    """An argument has a type that cannot be part of a cache's key."""


def key_of(value: Any) -> Hashable:
    """Returns what is equal for two arguments that mean the same to every function.

    Raises:
        UncacheableArgumentError: no numbers, names, slots, or tuples, lists and dicts of these.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return kind, value  # True, 1 and 1.0 are equal, but not the same argument
    if kind is Slot:
        return kind, value.place
    if kind is float:
        return kind, value.hex()  # so that 0.0 and -0.0 differ
    if kind in (tuple, list, torch.Size):
        return (kind, *map(key_of, value))
    if kind is dict:
        return (kind, *((name, key_of(part)) for name, part in value.items()))
    if kind is slice:
        return kind, key_of(value.start), key_of(value.stop), key_of(value.step)
    raise UncacheableArgumentError(kind)


def key_of_function(function: Callable[..., Any]) -> Hashable:
    """Returns what is equal for two functions that do the same: partial ones of one function.

    Raises:
        UncacheableArgumentError: the function is a closure, or has such arguments.
    """
    if type(function) is not partial or getattr(function.func, "__closure__", ()) is not None:
        raise UncacheableArgumentError(function)
    return function.func, key_of(function.args), key_of(function.keywords)


class Operations:
    """The last operations, by what they are made of."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Operation] = {}

    def share(
        self,
        key: Hashable,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        modes: TorchModes,
    ) -> Operation:
        """Returns the operation of a key; made of the other arguments at the first call.

        Args:
            key: all that the operation is made of.
            func, args, kwargs, modes: see :class:`Operation`.
        """
        operation = self._by_key.get(key)
        if operation is None:
            if len(self._by_key) >= _MOST_OPERATIONS:
                self._by_key.clear()
            operation = self._by_key[key] = Operation(func, args, kwargs, modes)
            operation.programs = {}
        return operation
