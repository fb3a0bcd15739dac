"""Tensors of a GPU that the host writes by one copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

_ALIGNMENT = 16  # of a tensor in the block, for any dtype


class StagedTensors:
    """Tensors that share a block of memory, and a pinned one on the host with the same layout.

    Args:
        like: tensors of the same shapes and dtypes.
        device: a GPU.

    Attributes:
        tensors: on the device, zeros at first.
    """

    def __init__(self, like: Sequence[Tensor], device: torch.device) -> None:
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in like]
        begins = [0, *accumulate(sizes)]
        self._host = torch.zeros(begins[-1], dtype=torch.uint8, device="cpu", pin_memory=True)
        self._device = torch.zeros(begins[-1], dtype=torch.uint8, device=device)

        def cut(block: Tensor) -> list[Tensor]:
            return [
                block[begin : begin + tensor.nbytes].view(tensor.dtype)
                for begin, tensor in zip(begins, like, strict=False)
            ]

        self._on_host = cut(self._host)
        self.tensors = [
            part.view(tensor.shape) for part, tensor in zip(cut(self._device), like, strict=True)
        ]

    def write(self, values: Sequence[Tensor]) -> None:
        """Writes values on the host. The last :meth:`upload` must have ended.

        Args:
            values: on the CPU, one for each tensor: all of its numbers, or the first ones.
        """
        for staged, value in zip(self._on_host, values, strict=True):
            staged[: value.numel()] = value.flatten()

    def upload(self) -> None:
        """Copies all to the device, on the current stream; does not wait."""
        self._device.copy_(self._host, non_blocking=True)
