"""Random numbers that need no state: 64-bit hashes of a counter, the same on every device.

Integer arithmetic in torch wraps on CPUs and GPUs alike, so any range of a stream can be made
alone, by any rank, and all agree on every bit.
"""

from __future__ import annotations

import torch

MASK64 = (1 << 64) - 1
# Elements hashed at a time: bounds the int64 temporaries to a few times 256 MiB.
CHUNK = 1 << 25

_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    value &= MASK64
    return value - (1 << 64) if value >= (1 << 63) else value


def shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64 values, as a new tensor."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix_(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64, in place."""
    x ^= shift_right(x, 30)
    x *= _signed(_MIX_1)
    x ^= shift_right(x, 27)
    x *= _signed(_MIX_2)
    x ^= shift_right(x, 31)
    return x


def _mix_int(x: int) -> int:
    x &= MASK64
    x ^= x >> 30
    x = (x * _MIX_1) & MASK64
    x ^= x >> 27
    x = (x * _MIX_2) & MASK64
    return x ^ (x >> 31)


def stream_key(seed: int, tag: int) -> int:
    """The key of one of the independent streams (`tag`) of a seed."""
    return _mix_int(_mix_int(seed * _GOLDEN + 1) + tag * 0xD1342543DE82EF95)


def hash_range(key: int, begin: int, end: int, device: torch.device | str) -> torch.Tensor:
    """Hashes of the counters [begin, end): int64 [end - begin], all 64 bits uniform."""
    counters = torch.arange(begin, end, device=device, dtype=torch.int64)
    counters *= _signed(_GOLDEN)
    counters += _signed(key)
    return mix_(counters)


def hash_ids(key: int, ids: torch.Tensor) -> torch.Tensor:
    """Hashes of the given counters: int64, shaped as `ids`."""
    hashed = ids.to(torch.int64) * _signed(_GOLDEN)
    hashed += _signed(key)
    return mix_(hashed)


def checksum(values: torch.Tensor, begin: int = 0) -> int:
    """Checksum of a slice that starts at position `begin`; those of slices add up (modulo 2^64)."""
    total = 0
    for chunk_begin in range(0, values.numel(), CHUNK):
        chunk = values[chunk_begin : chunk_begin + CHUNK].to(torch.int64)
        first = begin + chunk_begin
        positions = torch.arange(first, first + chunk.numel(), device=chunk.device)
        positions *= _signed(_GOLDEN)
        positions += chunk
        total += int(mix_(positions).sum())
    return total & MASK64
