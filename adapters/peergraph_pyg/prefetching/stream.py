"""CUDA streams for threads that prepare batches, and batches that change streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

from peergraph.memory import Table, use_thread_local_capture_mode
from peergraph.store import Store, StoreTensor

from ..data.lazy_features import LazyRows
from ..data.sparse_adjacency import parts
from ..loader.batch_csc import tensors_behind

# Streams that no thread works on, by device and priority. They are used again, as memory that was
# freed on a stream serves only that one.
_idle_streams: defaultdict[tuple[torch.device, int], list[torch.cuda.Stream]] = defaultdict(list)

# What a batch may refer to without it being of the batch, and values without parts.
_NOT_OF_A_BATCH = (
    *(StoreTensor, Store, Table, torch.nn.Module, ModuleType, FunctionType, MethodType, type),
    *(str, bytes, int, float, complex, type(None)),
)
# Their own method would not know all of what is in them.
_OF_PARTS = (BaseData, Mapping)


def take_stream(device: torch.device, priority: int = -1) -> torch.cuda.Stream:
    """A stream for a thread, behind what is on the current one: it may have written the tables.

    Args:
        priority: the smaller, the sooner its kernels run; the current stream usually has 0.
    """
    try:
        stream = _idle_streams[device, priority].pop()
    except IndexError:
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def give_back(stream: torch.cuda.Stream, priority: int = -1) -> None:
    """Lets a later thread have a stream that :func:`take_stream` gave for that priority."""
    _idle_streams[stream.device, priority].append(stream)


@contextmanager
def working_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """For a new thread: its work goes to the stream, whatever the loop captures meanwhile."""
    # A thread begins on GPU 0, and leaving the stream would return there: each process would set up
    # memory of its own on that GPU.
    torch.cuda.set_device(stream.device)
    use_thread_local_capture_mode()
    with torch.cuda.stream(stream):
        yield


def use_on(stream: torch.cuda.Stream, batch: Any) -> None:
    """Keeps the memory of a batch's tensors until a stream has used them.

    Looks for them in containers and in the attributes of objects, whatever a transform made.
    """
    found: dict[int, Any] = {}  # holds what it has seen: another object must not get its id
    ahead = [batch]
    while ahead:
        value = ahead.pop()
        if id(value) in found or isinstance(value, _NOT_OF_A_BATCH):
            continue
        found[id(value)] = value
        if isinstance(value, LazyRows):
            if value.is_cuda:
                value.record_stream(stream)
            continue
        if isinstance(value, Tensor):
            if value.is_cuda:
                for tensor in (*parts(value), *tensors_behind(value)):
                    tensor.record_stream(stream)
        elif hasattr(value, "record_stream") and not isinstance(value, _OF_PARTS):
            value.record_stream(stream)
        ahead.extend(_inside(value))


def _inside(value: Any) -> Iterable[Any]:
    """The items of a container, and the attributes of any object."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(value, name, None)
