"""Numbers that tell the values of tensors apart, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (-7046029254386353131, -4658895280553007687)  # splitmix64's multipliers, as int64


class HostCopy:
    """A small tensor on its way to the host, which goes on meanwhile.

    Args:
        tensor: on any device.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.is_cuda:
            self._copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> Tensor:
        """Returns the copy on the CPU when it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


# Elements of a row of the digest, and of what is in memory at once as 64-bit numbers.
_COLUMNS, _PIECE = 4096, 1 << 24


def content_digest(tensor: Tensor) -> Tensor:
    """Returns a digest of a tensor's values and their order, an int64 tensor [] on its device.

    Each 32-bit word is multiplied with a 64-bit number of its place, and the products are added
    (multilinear hashing). Does not synchronise; equal on all devices.

    Args:
        tensor: of any dtype and any strides.
    """
    with torch.no_grad():
        values = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        words = values.view(_WORDS.get(values.itemsize, torch.int32))
        columns = _numbers(min(_COLUMNS, max(words.numel(), 1)), words.device)
        digests = []
        for piece in words.split(_PIECE):
            whole = len(piece) // len(columns) * len(columns)
            if whole:
                digests.append((piece[:whole].view(-1, len(columns)) * columns).sum(1))
            if whole < len(piece):
                rest = piece[whole:]
                digests.append((rest * columns[: len(rest)]).sum(0, keepdim=True))
        rows = torch.cat([*digests, columns.new_tensor([values.numel()])])
        return (rows * _numbers(len(rows), words.device)).sum()


_WORDS = {1: torch.uint8, 2: torch.int16}


def _numbers(count: int, device: torch.device) -> Tensor:
    """Returns `count` numbers without order, [count] int64: splitmix64 of their places."""
    value = torch.arange(1, count + 1, device=device) * _ODD[0]
    value = (value ^ (value >> 30)) * _ODD[1]
    value = (value ^ (value >> 27)) * _ODD[0]
    return value ^ (value >> 31)
