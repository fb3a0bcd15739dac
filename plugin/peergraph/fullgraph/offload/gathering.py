"""All rows of offloaded tensors, gathered on the CPU or on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunk_pass import PassChunk
from peergraph.fullgraph.offload.offloaded_tensor import OffloadedTensor
from peergraph.fullgraph.offload.passes import RowPass
from peergraph.fullgraph.offload.replay import Place
from peergraph.fullgraph.offload.row_segment import row_operand
from peergraph.fullgraph.tensor.conversions import gather_rows
from peergraph.fullgraph.tensor.partitioned_tensor import PartitionedTensor, wrap


def local_rows(x: OffloadedTensor, device: torch.device | None = None) -> Tensor:
    """Returns this rank's rows. Collective; not differentiable.

    Args:
        x: partitioned along its first dimension.
        device: of the result; None: the CPU.
    """
    content = x._content
    times = x.layout.local_count // max(content.space.layout.local_count, 1)
    if x.partitioned_dim != 0 or times * content.space.layout.local_count != x.layout.local_count:
        raise NotImplementedError(
            f"the rows of a tensor {tuple(x.shape)} that is partitioned along dimension "
            f"{x.partitioned_dim}: gather the rows before they are transposed"
        )
    shape = (x.layout.local_count, *x.shape[1:])
    result = torch.empty(shape, dtype=x.dtype, device=device or torch.device("cpu"))
    row_pass = RowPass(content.space, [row_operand(x)])
    [slot] = row_pass.outputs

    def visit(chunk: PassChunk, place: Place, values: list[Any]) -> None:
        result[chunk.start * times : chunk.stop * times] = values[slot]._local

    row_pass.run(visit)
    return result


def resident_rows(x: OffloadedTensor, layout: RowLayout) -> PartitionedTensor:
    """Returns the rows as a tensor on the device. Collective; not differentiable."""
    return wrap(local_rows(x, x.device), layout, 0)


def all_rows(x: OffloadedTensor) -> Tensor:
    """Returns all rows in the user's order on the CPU. Collective; not differentiable."""
    local = local_rows(x, x.device)
    return gather_rows(local, x.layout, 0).cpu()
