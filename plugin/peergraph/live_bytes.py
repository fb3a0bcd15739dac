"""Counts the memory of tensors that exist at a time, by their number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes", "WorkBytes", "has_dispatch_mode"]

# Parts of a chunk's rows that work may be cut into.
_MOST_PARTS = 16


def has_dispatch_mode() -> bool:
    """Returns whether a mode other than :class:`LiveBytes` sees torch's operations as they run."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return False
    modes = _get_current_dispatch_mode_stack()
    return any(not isinstance(mode, LiveBytes) for mode in modes)


class WorkBytes(NamedTuple):
    """Bytes of the tensors that work on rows and edges holds."""

    rows: int = 0
    edges: int = 0
    fixed: int = 0
    """Of neither: of as many bytes for more rows."""


class _Storage(NamedTuple):
    memory: StorageWeakRef
    num_bytes: int
    shape: torch.Size
    number: int

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1


class LiveBytes(TorchDispatchMode):
    """Counts, within the context, the bytes of tensors that functions of torch make.

    Memory that is freed counts no longer. What kernels take for themselves is not counted.

    Args:
        sources: numbers of rows of tensors that are neither rows nor edges of some work, nor fixed.
        plain: returns the plain tensor within one of a subclass; any other as it is.
    """

    def __init__(
        self,
        sources: Iterable[int] = (),
        plain: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters: Collection[torch.Size] = ()
        """Shapes of tensors that are as large for more rows."""
        self._sources, self._plain = set(sources), plain
        self._peaks: dict[int, int] = {}
        self._live: dict[int, _Storage] = {}
        self._count_of_tensors = 0
        self._work_from, self._work_on = 0, (0, 0)
        self._most = WorkBytes()

    def start_work(self, rows: int, edges: int) -> None:
        """From now on, counts the tensors that are made: see :meth:`most_of_work`."""
        self._work_from, self._work_on = self._count_of_tensors, (rows, edges)
        self._most = WorkBytes()

    def most_of_work(self) -> WorkBytes:
        """Returns the most bytes of the work at a time."""
        return self._most

    def peak_of(self, rows: Iterable[int]) -> int:
        """Returns the most bytes at a time of tensors of some numbers of rows, added up."""
        return sum(self._peaks.get(count, 0) for count in set(rows))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the function, and counts what it returns."""
        kwargs = kwargs or {}
        before = {x.untyped_storage()._cdata for x in self._tensors((args, kwargs))}
        out = func(*args, **kwargs)
        for x in self._tensors(out):
            storage = x.untyped_storage()
            key = storage._cdata
            if key not in before and key not in self._live:
                self._count_of_tensors += 1
                memory = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._live[key] = _Storage(
                    memory, storage.nbytes(), x.shape, self._count_of_tensors
                )
        self._count()
        return out

    def _tensors(self, values: Any) -> list[Tensor]:
        tensors = (self._plain(x) for x in tree_leaves(values) if isinstance(x, Tensor))
        return [x for x in tensors if type(x) in (Tensor, torch.nn.Parameter)]

    def _count(self) -> None:
        self._live = {
            key: part
            for key, part in self._live.items()
            if not part.memory.expired()  # type: ignore[no-untyped-call]
        }
        by_rows, work = Counter[int](), [0, 0, 0]
        for part in self._live.values():
            by_rows[part.rows] += part.num_bytes
            if part.number > self._work_from and part.rows not in self._sources:
                work[self._kind(part)] += part.num_bytes
        for rows, num_bytes in by_rows.items():
            self._peaks[rows] = max(num_bytes, self._peaks.get(rows, 0))
        if sum(work) > sum(self._most):
            self._most = WorkBytes(*work)

    def _kind(self, part: _Storage) -> int:
        """Returns the place in :class:`WorkBytes` where a tensor counts."""
        rows, edges = self._work_on
        if part.shape in self.parameters or part.shape[::-1] in self.parameters:
            return 2
        if part.rows == edges:
            return 1
        return 0 if rows < _MOST_PARTS * part.rows <= _MOST_PARTS * rows else 2
