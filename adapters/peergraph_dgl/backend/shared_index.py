"""DGL's own graph index in memory that all ranks of the machine share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peergraph.memory import Group, SharedRegion

from .. import compat

# Bytes to which arrays are aligned: a cache line.
_ALIGN = 64
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class SharedArray:
    """A 1-D array in shared memory; pickles as a handle.

    Args:
        region: the memory, allocated by rank 0.
        offset: first byte of the array.
        dtype: dtype of the array.
        length: number of items.
    """

    region: SharedRegion
    offset: int
    dtype: torch.dtype
    length: int

    def tensor(self) -> Tensor:
        """Returns a view of the array; it keeps the memory mapped."""
        num_bytes = self.length * self.dtype.itemsize
        memory = self.region.part(0, torch.uint8, (self.offset + num_bytes,))
        return memory[self.offset :].view(self.dtype)


@dataclass(frozen=True)
class IndexLayout:
    """A graph index as DGL sends it to child processes, without the contents of its arrays.

    Args:
        version, meta: the version and the metadata of DGL's pickle format.
        specs: dtype and length of each array.
    """

    version: int
    meta: bytearray
    specs: list[tuple[torch.dtype, int]]

    @property
    def offsets(self) -> list[int]:
        """Offsets of the arrays in the shared memory in bytes, and its size as the last item."""
        offsets = [0]
        for dtype, length in self.specs:
            offsets.append(offsets[-1] + -(-length * dtype.itemsize // _ALIGN) * _ALIGN)
        return offsets


def pack(graph: Any) -> tuple[IndexLayout, list[Tensor]]:
    """Returns the structure of a graph on the CPU, in all sparse formats that it allows.

    Does not change the graph: missing formats are created in a copy of it.
    """
    formats = graph.formats()
    copy = graph.formats(formats["created"] + formats["not created"])
    copy.create_formats_()
    version, meta, arrays = compat.pickle_index(copy)
    specs = [(array.dtype, array.numel()) for array in arrays]
    return IndexLayout(version, meta, specs), arrays


def share_arrays(layout: IndexLayout, arrays: Sequence[Tensor], group: Group) -> list[SharedArray]:
    """Copies rank 0's arrays into memory of all ranks. Collective.

    Args:
        arrays: the arrays, on rank 0; empty on the other ranks.
    """
    offsets = layout.offsets
    region = SharedRegion.create(offsets[-1] if group.rank == 0 else 0, group, _CPU)
    shared = [
        SharedArray(region, offset, dtype, length)
        for offset, (dtype, length) in zip(offsets, layout.specs, strict=False)
    ]
    for target, array in zip(shared, arrays, strict=False):
        target.tensor().copy_(array)
    group.barrier()
    return shared


def make_index(layout: IndexLayout, arrays: list[SharedArray]) -> Any:
    """Makes a graph index (``HeteroGraphIndex``) over the shared arrays, without a copy.

    ``multiprocessing`` sends handles of the arrays to processes of the machine.
    """
    return compat.unpickle_index(layout.version, layout.meta, arrays)
