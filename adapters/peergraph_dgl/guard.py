"""What DGL hands to its C library must have memory, which store tensors have not of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dgl.backend
import torch
from dgl.backend.pytorch import tensor as torch_backend
from torch import Tensor

from peergraph.store import StoreTensor, TableTensor

from .structure import SharedArray

_CPU = torch.device("cpu")


def install() -> None:
    """Wraps the one function of DGL by which tensors reach its C library, once."""
    name = "zerocopy_to_dgl_ndarray"
    if not hasattr(getattr(dgl.backend, name), "__wrapped__"):
        guarded = _with_memory(getattr(dgl.backend, name))
        for module in (dgl.backend, torch_backend):
            setattr(module, name, guarded)


def _with_memory(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def guarded(data: Any) -> Any:
        if isinstance(data, StoreTensor):
            # DGL would pass a null pointer on.
            data = whole(data)
        elif isinstance(data, SharedArray):
            data = data.tensor()
        return original(data)

    return guarded


def whole(tensor: StoreTensor) -> Tensor:
    """All values as a plain tensor on the tensor's device; to be read only.

    Without a copy where the rows lie together on the CPU in the user's order, as edge tables of
    CPU ranks do; else the whole table is read.
    """
    if isinstance(tensor, TableTensor) and tensor.table.device == _CPU == tensor.device:
        owner = tensor.owner
        if isinstance(owner, tuple) or tensor.store.id_map(owner).to_internal is None:
            try:
                return tensor.table.as_tensor()
            except ValueError:  # the rows lie on several shards
                pass
    return tensor.whole()
