"""Counter-based random numbers, the same as in csrc/common/philox.h."""

from __future__ import annotations

from functools import lru_cache

_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF


@lru_cache(maxsize=1 << 16)
def philox(key: int, counter_low: int, counter_high: int) -> tuple[int, ...]:
    """One block of Philox4x32-10 (Salmon et al. 2011): four 32-bit words."""
    k0, k1 = key & _U32, key >> 32
    c = [counter_low & _U32, counter_low >> 32, counter_high & _U32, counter_high >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & _U32, (a >> 32) ^ c[3] ^ k1, a & _U32]
        k0, k1 = (k0 + 0x9E3779B9) & _U32, (k1 + 0xBB67AE85) & _U32
    return tuple(c)


def random_bits(seed: int, stream: int, position: int, draw: int) -> int:
    """64 random bits: two draws share a block, each takes half of it."""
    block = philox(seed, position, ((stream << 32) | (draw >> 1)) & _U64)
    half = 2 * (draw & 1)
    return (block[half + 1] << 32) | block[half]


def random_below(bound: int, seed: int, stream: int, position: int, draw: int) -> int:
    """A draw from ``0 .. bound - 1``."""
    return (random_bits(seed, stream, position, draw) * bound) >> 64
