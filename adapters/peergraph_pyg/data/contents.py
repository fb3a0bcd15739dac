"""What tensors hold at the moment, to notice what is written to them later."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peergraph.memory import ContentCheck


class Contents:
    """What tensors hold at the moment, to compare it with what the tensors hold later."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.copies = _copies_of(tensors)
        """The content of each tensor on the CPU. Users may write through NumPy, uncounted."""
        self._checks = {
            device: ContentCheck(_of_device(tensors, device))
            for device in {tensor.device for tensor in tensors if tensor.is_cuda}
        }

    @classmethod
    def of_each(cls, tensors: Sequence[Tensor]) -> list[Contents]:
        """Returns the contents of each of the tensors of one device. A GPU reads all at once."""
        contents = [cls.__new__(cls) for _ in tensors]
        for each, copy in zip(contents, _copies_of(tensors), strict=True):
            each.copies, each._checks = [copy], {}
        if tensors[0].is_cuda:
            for each, check in zip(contents, ContentCheck.of_each(tensors), strict=True):
                each._checks[tensors[0].device] = check
        return contents

    def match(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether the tensors hold the same, as far as the host knows by now.

        Raises:
            RuntimeError: tensors of a GPU did not at an earlier call.
        """
        pairs = zip(tensors, self.copies, strict=True)
        return all(_equals(tensor, copy) for tensor, copy in pairs) and all(
            check.is_unchanged(_of_device(tensors, device))
            for device, check in self._checks.items()
        )


def _copies_of(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    # Structures use it; what is made in inference mode could not be saved for a gradient.
    with torch.inference_mode(False):
        return [t.detach().clone() if t.device.type == "cpu" else None for t in tensors]


def _equals(tensor: Tensor, copy: Tensor | None) -> bool:
    """Returns whether a tensor equals a copy on the CPU, or is on another device without one."""
    on_cpu = tensor.device.type == "cpu"
    if copy is None or not on_cpu:
        return copy is None and not on_cpu
    return tensor.dtype == copy.dtype and torch.equal(tensor, copy)


def _of_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.device == device]
