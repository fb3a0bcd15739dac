"""What tensors hold at the moment, to notice what is written to them later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.memory import ContentCheck


class Contents:
    """What tensors hold at the moment, to compare it with what the tensors hold later."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = _copies_of(tensors)
        self._checks = {
            device: ContentCheck(_of_device(tensors, device))
            for device in {tensor.device for tensor in tensors if tensor.is_cuda}
        }

    def copy_of(self, position: int) -> Tensor | None:
        """Returns the content of a tensor on the CPU. Users may write through NumPy, uncounted."""
        return self._copies[position]

    def match(self, tensors: Sequence[Tensor], positions: Sequence[int] | None = None) -> bool:
        """Returns whether the tensors hold the same, as far as the host knows by now.

        Args:
            tensors: the same as at the beginning, or some of them if all are on one device.
            positions: of these among those of the beginning; None: all.

        Raises:
            RuntimeError: tensors of a GPU did not at an earlier call.
        """
        copies = self._copies if positions is None else [self._copies[i] for i in positions]
        return all(_equals(*pair) for pair in zip(tensors, copies, strict=True)) and all(
            check.is_unchanged(_of_device(tensors, device), positions)
            for device, check in self._checks.items()
        )


def _copies_of(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    on_cpu = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    if not on_cpu:
        return [None] * len(tensors)
    # Structures use it; what is made in inference mode could not be saved for a gradient.
    with torch.inference_mode(False):
        if len(on_cpu) < len(tensors) or len({tensor.dtype for tensor in tensors}) > 1:
            return [t.detach().clone() if t.device.type == "cpu" else None for t in tensors]
        # A batch of hundreds of relations is copied as one tensor.
        with torch.no_grad():
            whole = torch.cat(list(map(torch.ravel, tensors)))
            parts = torch.unsafe_split_with_sizes(whole, list(map(Tensor.numel, tensors)))
            return list(map(Tensor.view_as, parts, tensors))


def _equals(tensor: Tensor, copy: Tensor | None) -> bool:
    """Returns whether a tensor equals a copy on the CPU, or is on another device without one."""
    on_cpu = tensor.device.type == "cpu"
    if copy is None or not on_cpu:
        return copy is None and not on_cpu
    return tensor.dtype == copy.dtype and torch.equal(tensor, copy)


def _of_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.device == device]
