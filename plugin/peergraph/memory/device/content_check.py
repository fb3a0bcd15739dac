"""Notices writes to tensors of a GPU that torch does not count, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import launch_on, stream_address
from peergraph.memory.device.pending_errors import raise_pending

# Matrices of so few rows are read row by row where these lie apart; others are copied first.
_MAX_ROWS = 8

# The digests that CUDA graphs read at every replay, for as long as the process runs: nothing tells
# when a graph is gone. They are a thousandth of the tensors.
_captured: list[Tensor] = []


class ContentCheck:
    """What tensors of one device hold at the moment, to be compared with what they hold later.

    Writes that torch counts are told at once, by versions and addresses. Others, through ``.data``,
    DLPack, kernels or replayed CUDA graphs, are told by digests: on the CPU at once. A GPU reads
    the tensors once in the order of its stream and reports a difference as it does ids out of
    range: a later operation or :func:`peergraph.synchronize` raises a RuntimeError.

    While a CUDA graph is captured, the comparison becomes a part of the graph.

    Args:
        tensors: of any dtype; matrices are taken as edge indices, others as ids or types.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._device = tensors[0].device
        self._states = list(map(_state_of, tensors))
        self._raised_writes = _num_raised_writes(self._device)
        parts = _parts_of(tensors)
        count = _C.count_content_pieces([part for part, _ in parts])
        # What is made in inference mode could not be read in a CUDA graph that trains.
        with torch.inference_mode(False):
            self._digests = torch.empty((count, 2), dtype=torch.int64, device=self._device)
        self._stream = stream_address(self._device)
        self._is_captured = is_capturing(self._device)
        self._native = self._native_of(parts)
        self._native.write(launch_on(self._device))

    def is_unchanged(self, tensors: Sequence[Tensor]) -> bool:
        """Returns False if the tensors are known to have changed: what was made of them is old.

        Args:
            tensors: the same as at the beginning.

        Raises:
            RuntimeError: a comparison of an earlier call has found a change.
        """
        raise_pending(self._device)
        if self._raised_writes != _num_raised_writes(self._device):
            return False  # the error may have been about these tensors
        if list(map(_state_of, tensors)) != self._states:
            return False
        self._retain_digests()
        native = self._native
        if not all(map(_has_rows, tensors)):  # they are copied anew
            parts = _parts_of(tensors)
            native = self._native_of(parts)
        return bool(native.is_unchanged(launch_on(self._device)))

    def _native_of(self, parts: list[tuple[Tensor, bool]]) -> _C.Content:
        return _C.Content(
            tensors=[part for part, _ in parts],
            are_edge_indices=[is_matrix for _, is_matrix in parts],
            digests=self._digests,
        )

    def _retain_digests(self) -> None:
        """Keeps the digests for as long as work that the next launch queues may read them."""
        if self._device.type == "cpu":
            return
        if is_capturing(self._device):
            if not self._is_captured:
                _captured.append(self._digests)
                self._is_captured = True
        elif stream_address(self._device) != self._stream:
            self._digests.record_stream(torch.cuda.current_stream(self._device))


def _parts_of(tensors: Sequence[Tensor]) -> list[tuple[Tensor, bool]]:
    """Returns contiguous tensors with the values, and whether they are of a matrix."""
    parts = []
    for tensor in tensors:
        values, is_matrix = tensor.detach(), tensor.dim() > 1
        if _has_rows(values) and not values.is_contiguous():
            parts += [(row, is_matrix) for row in values.unbind(0)]
        else:
            parts.append((values.contiguous(), is_matrix))
    return parts


def _has_rows(tensor: Tensor) -> bool:
    """Returns whether a tensor's values, or those of each of its few rows, lie side by side."""
    if tensor.is_contiguous():
        return True
    return tensor.dim() == 2 and tensor.shape[0] <= _MAX_ROWS and tensor.stride(1) == 1


def _state_of(tensor: Tensor) -> Hashable:
    return tensor._version, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _num_raised_writes(device: torch.device) -> int:
    return 0 if device.type == "cpu" else _C.num_raised_writes()
