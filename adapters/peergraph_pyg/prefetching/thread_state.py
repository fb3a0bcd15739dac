"""State that torch keeps for each thread, set up for the thread that makes batches.

The thread draws the numbers that the loop would have drawn, computes in the loop's modes, and works
on a separate CUDA stream; its batches then move to the stream of the loop.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

from peergraph.memory import Table
from peergraph.store import Store, StoreTensor

from ..compat import memory_of
from ..data.csc_cache import device_tensors
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
    """Keeps the memory of all tensors of a batch until a stream has used them.

    Finds tensors in containers and in the attributes of objects, which transforms may have made.
    """
    found: dict[int, Any] = {}  # keeps the objects alive, so that no other object gets their id
    recorded: set[int] = set()
    ahead = [batch]
    while ahead:
        value = ahead.pop()
        if id(value) in found or isinstance(value, _SKIPPED):
            continue
        found[id(value)] = value
        if isinstance(value, LazyRows):
            if value.is_cuda:
                value.record_stream(stream)
            continue
        if isinstance(value, Tensor):
            if value.is_cuda:
                for tensor in (*component_tensors(value), *device_tensors(value)):
                    # The tensors of a sample have their memory in common.
                    memory = memory_of(tensor) if type(tensor) is Tensor else id(tensor)
                    if memory not in recorded:
                        recorded.add(memory)
                        tensor.record_stream(stream)
        elif hasattr(value, "record_stream") and not isinstance(value, _CONTAINERS):
            value.record_stream(stream)
        ahead.extend(item for item in _contents(value) if type(item) not in _SKIPPED_AT_ONCE)


def _contents(value: Any) -> Iterable[Any]:
    """Yields the items of a container, and the attributes of any object."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()
    for name in _slots_of(type(value)):  # type: ignore[arg-type]
        yield getattr(value, name, None)


@lru_cache(maxsize=256)
def _slots_of(kind: type) -> list[str]:
    """Returns the names of the slots of a class. Looking them up is slow."""
    slots = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    return [name for names in slots for name in ((names,) if isinstance(names, str) else names)]
