"""Notices writes to tensors of a GPU that torch does not count, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

import peergraph._C as _C
from peergraph.memory.device.capture_mode import is_capturing
from peergraph.memory.device.launching import launch_on, stream_address
from peergraph.memory.device.pending_errors import raise_at_exit, raise_pending

# Matrices of so few rows are read row by row where these lie apart; others are copied first.
_MAX_ROWS = 8

# The digests that CUDA graphs read at every replay, for as long as the process runs: nothing tells
# when a graph is gone. They are a thousandth of the tensors.
_captured: list[Tensor] = []

_VERSION, _SHAPE, _DTYPE = attrgetter("_version"), attrgetter("shape"), attrgetter("dtype")

# A contiguous tensor, and whether it is of a matrix.
_Part = tuple[Tensor, bool]


class _Moment(NamedTuple):
    """When checks begin."""

    device: torch.device
    raised_writes: int
    stream: int
    is_captured: bool

    @classmethod
    def now(cls, device: torch.device) -> _Moment:
        """Returns the state of a device; errors that are found later are raised at exit."""
        if device.type == "cuda":
            raise_at_exit(device)
        raised_writes = _num_raised_writes(device)
        return cls(device, raised_writes, stream_address(device), is_capturing(device))


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
        self._device, self._raised_writes, self._stream, self._is_captured = _Moment.now(
            tensors[0].device
        )
        self._states = _states_of(tensors)
        parts = [_parts_of(tensor) for tensor in tensors]
        pieces = _C.count_content_pieces([part for part, _ in chain(*parts)])
        ends = list(accumulate(pieces, initial=0))
        # Of each tensor the first digest, and the number of all.
        self._starts = [ends[i] for i in accumulate(map(len, parts), initial=0)]
        self._digests = _write_digests(
            [part for of_tensor in parts for part in of_tensor], ends[-1]
        )
        self._natives: dict[tuple[int, int], _C.Content] = {}

    def is_unchanged(
        self, tensors: Sequence[Tensor], positions: Sequence[int] | None = None
    ) -> bool:
        """Returns False if the tensors are known to have changed: what was made of them is old.

        A GPU compares tensors of positions that follow each other by one launch, or a few.

        Args:
            tensors: the same as at the beginning, or some of them.
            positions: of these among those of the beginning; None: all.

        Raises:
            RuntimeError: a comparison of an earlier call has found a change.
        """
        raise_pending(self._device)
        if self._raised_writes != _num_raised_writes(self._device):
            return False  # the error may have been about these tensors
        chosen = range(len(self._states)) if positions is None else positions
        if _states_of(tensors) != [self._states[i] for i in chosen]:
            return False
        self._retain_digests()
        return all(
            self._have_digests(tensors[begin:end], chosen[begin]) for begin, end in _runs(chosen)
        )

    def _have_digests(self, tensors: Sequence[Tensor], first: int) -> bool:
        """Compares tensors of positions from `first` on."""
        key = first, first + len(tensors)
        native = self._natives.get(key)
        if native is None or not all(map(_has_rows, tensors)):  # others are copied anew
            parts = list(chain(*map(_parts_of, tensors)))
            begin, end = (self._starts[i] for i in key)
            native = self._natives[key] = _native_of(parts, self._digests[begin:end])
        return bool(native.is_unchanged(launch_on(self._device)))

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


def _write_digests(parts: list[_Part], num_pieces: int) -> Tensor:
    """Returns the digests of tensors of one device. Asynchronous."""
    device = parts[0][0].device
    # What is made in inference mode could not be read in a CUDA graph that trains.
    with torch.inference_mode(False):
        digests = torch.empty((num_pieces, 2), dtype=torch.int64, device=device)
    _native_of(parts, digests).write(launch_on(device))
    return digests


def _native_of(parts: list[_Part], digests: Tensor) -> _C.Content:
    return _C.Content(
        tensors=[part for part, _ in parts],
        are_edge_indices=[is_matrix for _, is_matrix in parts],
        digests=digests,
    )


def _parts_of(tensor: Tensor) -> list[_Part]:
    """Returns contiguous tensors with the values."""
    values, is_matrix = tensor.detach() if tensor.requires_grad else tensor, tensor.dim() > 1
    if values.is_contiguous() or not _has_rows(values):
        return [(values.contiguous(), is_matrix)]
    return [(row, is_matrix) for row in values.unbind(0)]


def _runs(positions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the ranges of positions that follow each other, as ranges of places."""
    begin = 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] != positions[end - 1] + 1:
            yield begin, end
            begin = end


def _has_rows(tensor: Tensor) -> bool:
    """Returns whether a tensor's values, or those of each of its few rows, lie side by side."""
    if tensor.is_contiguous():
        return True
    return tensor.dim() == 2 and tensor.shape[0] <= _MAX_ROWS and tensor.stride(1) == 1


def _states_of(tensors: Sequence[Tensor]) -> list[Hashable]:
    """Returns version, address, shape, strides and dtype of each tensor; there may be hundreds."""
    return list(
        zip(
            map(_VERSION, tensors),
            map(Tensor.data_ptr, tensors),
            map(_SHAPE, tensors),
            map(Tensor.stride, tensors),
            map(_DTYPE, tensors),
            strict=True,
        )
    )


def _num_raised_writes(device: torch.device) -> int:
    return 0 if device.type == "cpu" else _C.num_raised_writes()
