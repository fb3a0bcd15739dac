"""State that torch keeps for each thread, set up for the thread that makes batches.

The thread draws the numbers that the loop would have drawn, computes in the loop's modes, and works
on a separate CUDA stream; its batches then move to the stream of the loop.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.typing import TensorFrame

from peergraph.memory import Table
from peergraph.store import Store, StoreTensor

from ..compat import memory_of
from ..data.batch_structures import device_tensors
from ..data.lazy_features import LazyRows
from ..data.sparse_adjacency import component_tensors

# Streams that no thread uses, by device and priority. Later threads reuse them, because memory that
# was freed on a stream serves that stream only.
_idle_streams: defaultdict[tuple[torch.device, int], list[torch.cuda.Stream]] = defaultdict(list)

# Objects that a batch may refer to without owning them, and values that contain no tensors.
_SKIPPED = (
    *(StoreTensor, Store, Table, torch.nn.Module, ModuleType, FunctionType, MethodType, type),
    *(str, bytes, int, float, complex, type(None)),
)
# Most of them, by their own class: a batch of many edge types has thousands of names and counts.
_SKIPPED_AT_ONCE = frozenset({str, int, float, bool, type(None), weakref.ref})
# Their own `record_stream` misses tensors that are nested in their values.
_CONTAINERS = (BaseData, Mapping)
# What frames know of their columns: thousands of numbers and texts, and no rows.
_OF_COLUMNS = frozenset({"col_names_dict", "_col_to_stype_idx", "col_stats"})


@dataclass(frozen=True)
class Modes:
    """Gradient, inference, device and autocast modes of one thread, for another one to enter."""

    grad: bool
    inference: bool
    device: torch.device
    autocast: dict[str, torch.dtype]
    """The dtype by the type of device for which autocast is on."""

    @classmethod
    def current(cls) -> Modes:
        """Returns the modes of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_device(),
            {
                kind: torch.get_autocast_dtype(kind)
                for kind in ("cpu", "cuda")
                if torch.is_autocast_enabled(kind)
            },
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Returns a context in which this thread has the modes."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if self.device.type != "cpu":
                stack.enter_context(self.device)
            for kind, dtype in self.autocast.items():
                # A cache of cast weights would be shared by two streams without synchronisation.
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield


def take_stream(device: torch.device, priority: int = -1) -> torch.cuda.Stream:
    """Returns a stream that starts after the work of the current stream, which may write the
    tables.

    Args:
        device: the device of the stream.
        priority: the priority of its kernels; smaller numbers run sooner. The current stream
            usually has 0.
    """
    try:
        stream = _idle_streams[device, priority].pop()
    except IndexError:
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def return_stream(stream: torch.cuda.Stream, priority: int = -1) -> None:
    """Makes a stream of :func:`take_stream` available to later threads."""
    _idle_streams[stream.device, priority].append(stream)


def record_stream(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keeps the memory of all tensors of a batch until a stream has used them."""
    for owner in owners_of_memory(batch):
        owner.record_stream(stream)


def owners_of_memory(batch: Any) -> list[Any]:
    """Returns the tensors of GPUs in a batch, one for each memory that several have in common, and
    other objects with a method ``record_stream``.

    Finds tensors in containers and in the attributes of objects, which transforms may have made.
    """
    with torch._C.DisableTorchFunction():  # as in a loader's thread, see filter_batch.py
        return _owners_of_memory(batch)


def _owners_of_memory(batch: Any) -> list[Any]:
    visited: dict[int, Any] = {}  # keeps the objects alive, so that no other object gets their id
    owners: dict[int, Any] = {}
    ahead = [batch]
    while ahead:
        value = ahead.pop()
        if type(value) in _SKIPPED_AT_ONCE or id(value) in visited:
            continue
        kind = _kind_of(type(value))  # type: ignore[arg-type]
        if kind.is_skipped:
            continue
        visited[id(value)] = value
        if kind.is_lazy:
            if value.is_cuda:
                owners[id(value)] = value
            continue
        if kind.is_tensor:
            if value.is_cuda:
                for tensor in (*component_tensors(value), *device_tensors(value)):
                    # The tensors of a sample have their memory in common.
                    memory = memory_of(tensor) if type(tensor) is Tensor else id(tensor)
                    owners.setdefault(memory, tensor)
        elif not kind.is_container and hasattr(value, "record_stream"):
            owners[id(value)] = value
        if kind.has_values:
            ahead.extend(value.values())
        elif kind.has_items:
            ahead.extend(value)
        attributes = getattr(value, "__dict__", {})
        if kind.is_frame:
            attributes = {k: v for k, v in attributes.items() if k not in _OF_COLUMNS}
        ahead.extend(attributes.values())
        ahead.extend(getattr(value, name, None) for name in kind.slots)
    return list(owners.values())


class _Kind(NamedTuple):
    """What a class says about where its objects have tensors."""

    is_skipped: bool
    is_lazy: bool
    is_tensor: bool
    is_container: bool  # whose own `record_stream` is not enough
    is_frame: bool
    has_values: bool
    has_items: bool
    slots: list[str]


@lru_cache(maxsize=256)
def _kind_of(kind: type) -> _Kind:
    slots = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    return _Kind(
        is_skipped=issubclass(kind, _SKIPPED),
        is_lazy=issubclass(kind, LazyRows),
        is_tensor=issubclass(kind, Tensor),
        is_container=issubclass(kind, _CONTAINERS),
        is_frame=issubclass(kind, TensorFrame),
        # A storage has its values in an attribute.
        has_values=issubclass(kind, Mapping) and not issubclass(kind, BaseStorage),
        has_items=issubclass(kind, (list, tuple, set, frozenset)),
        slots=[name for names in slots for name in ((names,) if isinstance(names, str) else names)],
    )
