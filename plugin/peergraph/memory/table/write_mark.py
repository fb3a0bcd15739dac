"""A word by which every process that reads a table sees that its rows were written."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.group.group import Group
from peergraph.memory.group.naming import collective
from peergraph.memory.region.region import SharedRegion

_UNKNOWN = 0


class WriteMark:
    """A random number in memory that all ranks share, and that every write replaces.

    Writes of several processes need no order: whatever number remains is a new one.
    """

    def __init__(self, region: SharedRegion) -> None:
        self._region = region
        # Stays mapped after `close`, so that reading it is safe then, too.
        self._word = region.part(0, torch.int64, (1,)).numpy()

    @classmethod
    @collective("WriteMark.create")
    def create(cls, group: Group) -> WriteMark:
        """Makes a mark. Collective; no row may be written meanwhile."""
        num_bytes = 8 if group.rank == 0 else 0
        mark = cls(SharedRegion.create(num_bytes, group, "cpu", huge_pages=False))
        if group.rank == 0:
            mark._word[0] = _new_value()
        group.barrier()
        return mark

    @property
    def value(self) -> int | None:
        """The number; None if rows may be written without replacing it."""
        value = int(self._word[0])
        return None if value == _UNKNOWN else value

    @contextmanager
    def writing(self, device: torch.device) -> Iterator[None]:
        """In this context, rows are written. On a GPU, waits for the current stream at the end."""
        self._renew()
        try:
            yield
        finally:
            if device.type == "cuda" and is_capturing(device):
                self.forget()  # the graph will write without a call
            elif device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            self._renew()

    def forget(self) -> None:
        """From now on, rows may be written without replacing the number."""
        self._word[0] = _UNKNOWN

    def _renew(self) -> None:
        if self.value is not None:
            self._word[0] = _new_value()

    def close(self, why: str) -> None:
        """Releases the memory. Collective, as :meth:`SharedRegion.close`."""
        self._region.close(why)

    def __reduce__(self) -> tuple[Any, ...]:
        return WriteMark, (self._region,)


def _new_value() -> int:
    return 1 + secrets.randbelow(2**63 - 2)


class MarkedRows:
    """Rows whose writes are marked, once :meth:`mark_writes` has been called."""

    write_mark: WriteMark | None = None
    group: Group

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """Tensors over the memory, of which users have views."""
        return {}

    def mark_writes(self) -> None:
        """Has all ranks see in :attr:`write_mark` that rows were written. Collective.

        On a GPU, every write then waits for its stream. Writes to tensors over the memory cannot be
        seen: once there may be any, the mark has no value.
        """
        self.write_mark = WriteMark.create(self.group)

    def _writing(self) -> AbstractContextManager[None]:
        for tensor in list(self._tensors.values()):  # other threads may add one, or close the table
            increment_version(tensor)  # autograd may have saved a view
        mark = self.write_mark
        return nullcontext() if mark is None else mark.writing(self.group.device)

    def _over_memory(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Returns a tensor over the memory, whose version this rank's writes raise."""
        self._forget_mark()
        tensor = self._tensors.get(name)
        if tensor is None:
            with torch.inference_mode(False):
                tensor = self._tensors.setdefault(name, make())
        return tensor.view_as(tensor)

    def _forget_mark(self) -> None:
        if self.write_mark is not None:
            self.write_mark.forget()

    def _marks(self) -> list[WriteMark]:
        return [] if self.write_mark is None else [self.write_mark]
