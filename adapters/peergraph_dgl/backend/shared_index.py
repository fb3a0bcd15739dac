"""DGL's own graph index over memory that all ranks of the machine share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dgl
import torch
from dgl import heterograph_index
from torch import Tensor

from peergraph.memory import Group, SharedRegion

# What a vector instruction or a cache line wants at most.
_ALIGN = 64
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class SharedArray:
    """A 1-D array in shared memory; pickles as a handle.

    Args:
        region: the memory; rank 0 holds it.
        begin: first byte.
        dtype, length: of the array.
    """

    region: SharedRegion
    begin: int
    dtype: torch.dtype
    length: int

    def tensor(self) -> Tensor:
        """The array, without a copy; keeps the memory mapped."""
        num_bytes = self.length * self.dtype.itemsize
        memory = self.region.part(0, torch.uint8, (self.begin + num_bytes,))
        return memory[self.begin :].view(self.dtype)


@dataclass(frozen=True)
class Packed:
    """A graph index as DGL sends it to child processes, its arrays described only.

    Args:
        version, meta: DGL's.
        specs: dtype and length of each array.
    """

    version: int
    meta: bytearray
    specs: list[tuple[torch.dtype, int]]

    @property
    def begins(self) -> list[int]:
        """Where the arrays begin in the shared memory, and, last, its size."""
        begins = [0]
        for dtype, length in self.specs:
            begins.append(begins[-1] + -(-length * dtype.itemsize // _ALIGN) * _ALIGN)
        return begins


def pack(graph: Any) -> tuple[Packed, list[Tensor]]:
    """The structure of a graph on the CPU, in all sparse formats that it allows.

    The graph stays as it is: formats that it did not have are made for its copy.
    """
    formats = graph.formats()
    copy = graph.formats(formats["created"] + formats["not created"])
    copy.create_formats_()
    states = heterograph_index._CAPI_DGLHeteroForkingPickle(copy._graph)
    arrays = [dgl.backend.from_dgl_nd(array) for array in states.arrays]
    specs = [(array.dtype, array.numel()) for array in arrays]
    return Packed(states.version, states.meta, specs), arrays


def share_arrays(packed: Packed, arrays: list[Tensor] | None, group: Group) -> list[SharedArray]:
    """Copies rank 0's arrays into memory of all ranks. Collective.

    Args:
        arrays: on rank 0; None on the others.
    """
    begins = packed.begins
    region = SharedRegion.create(begins[-1] if group.rank == 0 else 0, group, _CPU)
    shared = [
        SharedArray(region, begin, dtype, length)
        for begin, (dtype, length) in zip(begins, packed.specs, strict=False)
    ]
    for target, array in zip(shared, arrays or (), strict=False):
        target.tensor().copy_(array)
    group.barrier()
    return shared


def make_index(packed: Packed, arrays: list[SharedArray]) -> Any:
    """A graph index (``HeteroGraphIndex``) whose arrays are the shared ones, without a copy.

    Sent to a process of the machine by ``multiprocessing``, it is mapped there.
    """
    states = heterograph_index._CAPI_DGLCreateHeteroPickleStates(
        packed.version, packed.meta, [dgl.backend.to_dgl_nd(array) for array in arrays]
    )
    index = heterograph_index._CAPI_DGLHeteroForkingUnpickle(states)
    # What DGL sends in the place of copies of the arrays; its C library gets tensors by the guard.
    index._forking_pk_state = (packed.version, packed.meta, arrays)
    return index
