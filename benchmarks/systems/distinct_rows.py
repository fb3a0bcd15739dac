"""Sums whose remote rows a kernel of the reader brings, each distinct row once.

The fourth way beside whole blocks, packed rows, and a row for each edge: a kernel reads every row
of the halo where its owner has published it and writes it to memory of the reader, beside the sums
of local edges; then the remote edges are summed. It needs the memory of the packed rows and the
multiprocessors of the kernel that reads by edge, so that the library does not have it as a mode.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.aggregate.kernels.arguments import MESSAGES
from peergraph.aggregate.sparse.edge_matrix import EdgeMatrix
from peergraph.fullgraph.structure.in_kernel_sum import InKernelSums
from peergraph.memory.device.launching import Buffers, launch_on


class DistinctRowSums:
    """Sums of rows over the edges of this rank, forward only. Made collectively, as are sums.

    Args:
        sums: the edges, and the rows that owners publish.
    """

    def __init__(self, sums: InKernelSums) -> None:
        self._sums = sums
        device = sums.local.device
        count = sums.remote.num_sources
        rows = torch.arange(count + 1, device=device, dtype=sums.remote.indices.dtype)
        self._each_row = EdgeMatrix(rows, rows[:-1].contiguous(), count)
        """One edge from each row of the halo."""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the sums of `x` [local rows of sources, columns] at this rank's destinations."""
        sums = self._sums
        with self._on_side_stream():
            staged = self._gather(x)
        out = sums.local.sum_messages(x, None, "copy_u")
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            staged.record_stream(torch.cuda.current_stream())
        sums.remote.add_messages(out, staged, None, "copy_u")
        return out

    def _gather(self, x: Tensor) -> Tensor:
        """Returns the rows of the halo."""
        published = self._sums.rows.publish(x)
        staged = x.new_empty(self._each_row.num_destinations, published.columns)
        operands = _C.Operands(
            message=MESSAGES["copy_u"],
            addresses=published.addresses,
            address_bits=published.bits,
            e=None,
            columns=published.columns,
            e_columns=1,
            leases=published.leases,
        )
        _C.spmm(
            self._each_row.tensors.native(),
            operands,
            mean=False,
            accumulate=False,
            out=staged,
            launch=launch_on(x.device),
            allocate=Buffers(x.device),
        )
        self._sums.rows.release()
        return staged[:, : x.shape[1]].contiguous()

    def _on_side_stream(self) -> contextlib.AbstractContextManager[object]:
        """The side stream, behind what the current one has done."""
        if self._stream is None:
            return contextlib.nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._stream)
