"""Digests of all bytes of tensors, by which results that were computed from them are found.

Versions of tensors and addresses do not tell whether a tensor has changed: writes through
``.data``, NumPy or fused optimizers raise no version. These digests are made in every step, so they
are quick, but do not add up over parts, nor equal those of other devices, as those of
:mod:`peergraph.memory.device.digest` do, by which ranks compare graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from peergraph.memory import record_cuda_graph
from peergraph.memory.device.capture_mode import is_capturing

_BLOCK = 1024  # bytes that one row of the first stage on a GPU has
_COLUMNS = 16  # of 8-bit keys: two different blocks have equal sums with probability 2^-128
_ON_HOST = 32 << 10  # bytes that are hashed on the CPU; more are reduced on the GPU first
_PIECE = 4 << 20  # bytes that one thread of the CPU hashes at a time

_Watched = list[tuple[Tensor, bytes]]
_last_digests = WeakIdKeyDictionary()  # of tensors on GPUs, for steps that are captured
_watching: _Watched | None = None


def current_digest(tensor: Tensor) -> bytes:
    """Returns the digest of what a tensor holds now: see :func:`content_digest`.

    While a CUDA graph is captured nothing can be read: then it is the digest of the last call for
    this tensor, and the step that is captured watches the tensor (:func:`watch`).

    Raises:
        RuntimeError: a step that is captured asks for the digest of a tensor for the first time.
    """
    if is_capturing(tensor.device):
        last: bytes | None = _last_digests.get(tensor)  # type: ignore[no-untyped-call]
        if last is None:
            raise RuntimeError(
                "a step that is captured selects rows by a mask or ids that it computes itself: "
                "compute them before the step and change them in place"
            )
    else:
        last = content_digest(tensor)
        if tensor.is_cuda and not tensor.is_inference():
            _last_digests[tensor] = last
    if _watching is not None:
        _watching.append((tensor, last))
    return last


@contextmanager
def watch() -> Iterator[_Watched]:
    """Within the context, notes the tensors on whose content a captured step depends."""
    global _watching
    before, _watching = _watching, []
    try:
        yield _watching
    finally:
        _watching = before


def are_unchanged(watched: _Watched) -> bool:
    """Returns whether tensors hold what they held at the capture. Synchronises a GPU once."""
    digests = content_digests([tensor for tensor, _ in watched])
    return all(digest == last for digest, (_, last) in zip(digests, watched, strict=True))


class ChangeDetector:
    """Tells whether tensors of a GPU hold what they held before, by one launch of a CUDA graph.

    Args:
        tensors: which are compared with what they hold now; at least one.
        stream: the stream in which the comparison is captured.
    """

    def __init__(self, tensors: list[Tensor], stream: torch.cuda.Stream) -> None:
        before = _joined_bytes(tensors).clone()
        self._answer = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

        def compare() -> None:
            has_changed = (_joined_bytes(tensors) != before).any()
            self._answer.copy_(has_changed, non_blocking=True)

        self._graph, _ = record_cuda_graph(compare, stream)

    def has_changed(self) -> bool:
        """Returns whether a tensor has changed. Waits for the current stream."""
        self._graph.replay()
        self._event.record()
        self._event.synchronize()
        return bool(self._answer)


def _joined_bytes(tensors: list[Tensor]) -> Tensor:
    return torch.cat([reduced_bytes(tensor) for tensor in tensors])


def content_digest(tensor: Tensor) -> bytes:
    """Returns a 128-bit digest of the shape, the dtype and all bytes of a plain tensor.

    Reads the tensor once. Synchronises a GPU. Digests of one device are comparable only.
    """
    [digest] = content_digests([tensor])
    return digest


class PendingDigest:
    """The digest of what a tensor holds now: see :func:`content_digest`.

    A GPU is not synchronised: it computes the digest and copies it to the host in its time.

    Args:
        tensor: a plain tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._description = _description(tensor)
        self._event: torch.cuda.Event | None = None
        reduced = reduced_bytes(tensor)
        self._digest: bytes | None = None
        if reduced.is_cuda:
            self._reduced = torch.empty_like(reduced, device="cpu", pin_memory=True)
            self._reduced.copy_(reduced, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._digest = _hash_pieces(reduced, self._description)

    def value(self) -> bytes:
        """Returns the digest; waits until it has come from a GPU."""
        if self._digest is None:
            assert self._event is not None
            self._event.synchronize()
            self._digest = _hash_pieces(self._reduced, self._description)
        return self._digest


def content_digests(tensors: list[Tensor]) -> list[bytes]:
    """Returns the digest of each tensor: see :func:`content_digest`. Synchronises a GPU once."""
    reduced = [reduced_bytes(tensor) for tensor in tensors]
    on_gpu = [part for part in reduced if part.is_cuda]
    if on_gpu:
        copied = iter(torch.split(torch.cat(on_gpu).cpu(), [len(part) for part in on_gpu]))
        reduced = [next(copied) if part.is_cuda else part for part in reduced]
    return [
        _hash_pieces(part, _description(tensor))
        for part, tensor in zip(reduced, tensors, strict=True)
    ]


def device_digest(tensors: list[Tensor]) -> Tensor:
    """Returns a 128-bit digest of the bytes of tensors of one device, [2] int64 on that device.

    A GPU is not synchronised. Digests of one type of device are comparable only.
    """
    if not tensors[0].is_cuda:
        digest = _hash_together(content_digests(tensors))
        return torch.frombuffer(bytearray(digest), dtype=torch.int64)
    data = reduced_bytes(torch.cat([_bytes(tensor) for tensor in tensors]))
    words = torch.nn.functional.pad(data, (0, -len(data) % 4)).view(torch.int32).long()
    # Of 64-bit keys: the high bits of words decide the high half of a product at least.
    return (words.unsqueeze(1) * _wide_keys(data.device)[: len(words)]).sum(0)


def reduced_bytes(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, uint8 on its device; of a large one on a GPU, sums of them.

    A block of 1024 bytes becomes 16 sums of 32 bits, each over all bytes times random 8-bit keys:
    a universal hash, exact in integers, that tensor cores compute in one pass over the memory.
    """
    data = _bytes(tensor)
    while data.is_cuda and data.numel() > _ON_HOST:
        blocks = data.numel() // _BLOCK
        whole = data[: blocks * _BLOCK].view(torch.int8).view(blocks, _BLOCK)
        sums = torch._int_mm(whole, _keys(data.device))
        data = torch.cat([sums.view(-1).view(torch.uint8), data[blocks * _BLOCK :]])
    return data


def _bytes(tensor: Tensor) -> Tensor:
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # One value may have any stride.
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)


@cache
def _keys(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    keys = torch.randint(
        -128, 128, (_COLUMNS, _BLOCK), generator=generator, dtype=torch.int8, device="cpu"
    )
    return keys.to(device).t()


@cache
def _wide_keys(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    low, high = -(2**63), 2**63 - 1
    keys = torch.randint(low, high, (_ON_HOST // 4, 2), generator=generator, device="cpu")
    return keys.to(device)


def _description(tensor: Tensor) -> bytes:
    return f"{tuple(tensor.shape)} {tensor.dtype}".encode()


def _hash_pieces(data: Tensor, salt: bytes) -> bytes:
    if data.numel() <= _PIECE:
        return _hash(data, salt)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # hashing releases Python's lock
        pieces = pool.map(lambda piece: _hash(piece, salt), torch.split(data, _PIECE))
        return _hash_together(pieces)


def _hash_together(digests: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join(digests), digest_size=16).digest()


def _hash(data: Tensor, salt: bytes) -> bytes:
    digest = hashlib.blake2b(salt, digest_size=16)
    values: Any = data.numpy()
    digest.update(values)
    return digest.digest()
