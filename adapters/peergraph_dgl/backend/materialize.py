"""Reads store tensors into memory before DGL's C library or a kernel takes their address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl.backend
import torch
from torch import Tensor

from peergraph.fullgraph import PartitionedTensor
from peergraph.store import StoreTensor, TableTensor

from ..compat import new_patches
from .shared_index import SharedArray

_CPU = torch.device("cpu")
_patches = new_patches()


def install() -> None:
    """Wraps the function that hands tensors to DGL's C library for reading. Idempotent.

    Tensors that the C library would write to take another function, which calls ``data_ptr``; a
    store tensor raises there.
    """
    if not _patches:
        _patches.replace(dgl.backend, "zerocopy_to_dgl_ndarray", _to_ndarray)


def _to_ndarray(original: Callable[[Any], Any], data: Any) -> Any:
    if isinstance(data, StoreTensor):
        # DGL would pass a null pointer on.
        data = materialize(data)
    elif isinstance(data, PartitionedTensor):
        raise NotImplementedError(
            "DGL's C library cannot take a partitioned tensor, of which each rank holds some rows: "
            "x.to_local() gives this rank's rows, x.full_tensor() gathers all; functions of the "
            "structure take the DGLGraph before peergraph_dgl.full_graph()"
        )
    elif isinstance(data, SharedArray):
        data = data.tensor()
    return original(data)


def materialize(tensor: Tensor) -> Tensor:
    """Returns the values of a tensor in memory, on the tensor's device; read only.

    A plain tensor is returned as it is. A table's rows are not copied where they are contiguous on
    the CPU in the user's order, as edge tables of CPU ranks are; other tables are read completely.
    """
    if not isinstance(tensor, StoreTensor):
        return tensor
    if isinstance(tensor, TableTensor) and tensor.table.device == _CPU == tensor.device:
        owner = tensor.owner
        if isinstance(owner, tuple) or tensor.store.id_map(owner).to_internal is None:
            try:
                return tensor.table.as_tensor()
            except ValueError:  # the rows are on several shards
                pass
    return tensor.materialize()
