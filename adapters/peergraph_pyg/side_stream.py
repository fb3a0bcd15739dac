"""CUDA streams for threads that prepare batches, and batches that change streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from peergraph.store import StoreTensor

from .adjacency import parts
from .blocks import tensors_behind
from .lazy_rows import LazyRows

# Streams that no thread works on, by device and priority. They are used again, as memory that was
# freed on a stream serves only that one.
_idle_streams: defaultdict[tuple[torch.device, int], list[torch.cuda.Stream]] = defaultdict(list)


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


def use_on(stream: torch.cuda.Stream, value: Any) -> None:
    """Keeps the memory of a batch's tensors until a stream has used them."""
    if isinstance(value, StoreTensor):
        return
    if isinstance(value, LazyRows):
        value.record_stream(stream)
    elif isinstance(value, Tensor):
        if value.is_cuda:
            for tensor in (*parts(value), *tensors_behind(value)):
                tensor.record_stream(stream)
    elif isinstance(value, (str, bytes, int, float, type(None))):
        return
    elif hasattr(value, "stores"):  # Data and HeteroData
        for storage in value.stores:
            use_on(stream, storage)
    elif isinstance(value, Mapping):
        for item in value.values():
            use_on(stream, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            use_on(stream, item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            use_on(stream, getattr(value, field.name))
    elif hasattr(value, "record_stream"):
        value.record_stream(stream)
