"""What DGL hands to its C library must have memory, which store tensors have not of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.backend
import torch
from torch import Tensor

from peergraph.store import StoreTensor, TableTensor

from .replacing import Replacements
from .shared_index import SharedArray

_CPU = torch.device("cpu")
_replacements = Replacements()


def install() -> None:
    """Wraps the function of DGL by which tensors reach its C library to be read, once.

    Those that it would write to go another way, which a store tensor's ``data_ptr`` refuses.
    """
    if not _replacements:
        _replacements.replace(dgl.backend, "zerocopy_to_dgl_ndarray", _with_memory)


def _with_memory(dgls: Callable[[Any], Any], data: Any) -> Any:
    if isinstance(data, StoreTensor):
        # DGL would pass a null pointer on.
        data = whole(data)
    elif isinstance(data, SharedArray):
        data = data.tensor()
    return dgls(data)


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
