"""Synthetic graphs with locality: of published sizes, cut in parts with published duplication.

Training out of host memory depends on how many parts of a graph need the same row: its duplication
factor alpha, the rows that all parts need, each part's distinct rows counted, over the nodes
(HongTu 2.4, Table 3). Here parts are ranges of node ids, and the share of a node's edges that stay
within 1/2, 1/4, 1/8, ... of the ids is chosen so that 2, 4, 8, ... parts have the factors that were
published.

Ids are cut in groups of equal make-up: each has nodes of all degrees of a lognormal law, scattered.
A node's in-degree and its chance to be a source are proportional to its weight. An edge's source is
in a group of the block of ids that a level, drawn by the shares above, gives for its destination.

As in `graphs`, everything is integer arithmetic on hashed counters: any range of destinations can
be made alone, on any device, in pieces.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inputs.counter_hash import CHUNK, hash_range, shift_right, stream_key
from inputs.graphs import PRESETS, GraphSpec

Array = np.ndarray[Any, Any]

# Parts 2, 4, ..., 512 of Table 3; edges that leave no part of 512 stay within 1/1024 of the ids.
_LEVELS = 9
_MATCHED = 5  # 2^5 parts
_FITTED_CLASSES = 256
_LARGEST_GROUP, _LEAST_GROUP, _LEAST_GROUPS = 4096, 16, 2048
_KNOT_BITS, _FRACTION_BITS, _LEVEL_BITS, _GROUP_BITS = 16, 24, 20, 32


@dataclass(frozen=True)
class LocalGraphSpec(GraphSpec):
    """A graph with the duplication factors that it shall have."""

    alphas: tuple[float, ...] = ()  # of 2, 4, ..., 512 parts; empty: no locality


_IT = (1.23, 1.35, 1.46, 1.52, 1.60, 1.63, 1.71, 1.76, 1.85)
_PAPERS = (1.25, 1.52, 2.13, 3.02, 4.46, 6.34, 8.50, 10.6, 12.3)
_FRIENDSTER = (1.32, 1.77, 2.68, 3.86, 5.48, 7.70, 10.7, 14.4, 18.1)

LOCAL_PRESETS = {
    spec.name: spec
    for spec in (
        # HongTu's Table 4, with features and classes as it has them.
        LocalGraphSpec("it-2004", 41_291_594, 1_150_725_436, 1.5, 256, 64, 10_322_898, alphas=_IT),
        LocalGraphSpec(
            "papers100m", 111_059_956, 1_615_685_872, 1.3, 200, 172, 1_207_179, alphas=_PAPERS
        ),
        LocalGraphSpec(
            "friendster", 65_608_366, 2_500_000_000, 1.5, 256, 64, 16_402_091, alphas=_FRIENDSTER
        ),
        # ogbn-papers100M with both directions of its edges and with its own features.
        LocalGraphSpec(
            "papers100m-both", 111_059_956, 3_228_124_712, 1.3, 128, 172, 1_207_179, alphas=_PAPERS
        ),
        *(
            LocalGraphSpec(**vars(PRESETS[name]))  # no duplication factor was published
            for name in ("tiny", "products", "reddit")
        ),
    )
}


def get_local_spec(name: str) -> LocalGraphSpec:
    """A preset by name; "NAME/D" has 1/D of its nodes and edges."""
    base, _, divisor = name.partition("/")
    if base not in LOCAL_PRESETS or not re.fullmatch(r"[\d.]*", divisor):
        names = ", ".join(LOCAL_PRESETS)
        raise ValueError(f"unknown graph {name!r}; there are {names}, and NAME/DIVISOR")
    spec = LOCAL_PRESETS[base]
    return spec.scaled(float(divisor)) if divisor else spec  # type: ignore[return-value]


def expected_alpha(shares: Sequence[float], parts_log2: int, degrees: Tensor) -> float:
    """Returns the duplication factor of 2^parts_log2 parts.

    Args:
        shares: of edges whose source is drawn from 1/2^level of the ids, by level.
        degrees: [classes] float64 expected out-degrees of nodes, all classes alike frequent.
    """
    return _expected_alpha(shares, parts_log2, degrees.numpy())


def _expected_alpha(shares: Sequence[float], parts_log2: int, degrees: Array) -> float:
    distinct, chance = 1.0, 0.0
    for level in range(parts_log2):
        # The chance that an edge goes to a part in the same block of this level, not the next one.
        chance += shares[level] * 2.0 ** (level - parts_log2)
        missed = float(np.exp(-degrees * chance).mean())
        distinct += 2 ** (parts_log2 - level - 1) * (1.0 - missed)
    return distinct


@lru_cache(maxsize=16)
def level_shares(spec: LocalGraphSpec) -> tuple[float, ...]:
    """The share of edges of each level, [_LEVELS + 2], fitted to the duplication factors.

    A factor that cannot be reached, because the shares add up to more than 1, is reached as far as
    they go.
    """
    if not spec.alphas:
        return (1.0, *(0.0,) * (_LEVELS + 1))
    degrees = expected_degrees(spec).numpy()
    # Where few far edges already give more than the factor of 32 parts, the factors of fewer parts
    # are lowered: 32 is what is matched.
    low, high = 0.0, 1.0
    shares = _fit(spec.alphas, 1.0, degrees)
    if _expected_alpha(shares, _MATCHED, degrees) > 1.01 * spec.alphas[_MATCHED - 1]:
        for _ in range(20):
            middle = (low + high) / 2
            shares = _fit(spec.alphas, middle, degrees)
            if _expected_alpha(shares, _MATCHED, degrees) < spec.alphas[_MATCHED - 1]:
                low = middle
            else:
                high = middle
    return (*shares, 0.0, 1.0 - sum(shares))


def expected_degrees(spec: GraphSpec) -> Tensor:
    """[classes] float64: means of the nodes' out-degrees over quantiles, at most 256."""
    weights = _class_weights(_group_size(spec), spec.sigma)
    if weights.numel() > _FITTED_CLASSES:
        weights = weights.view(_FITTED_CLASSES, -1).mean(1)
    return weights * (spec.num_edges / spec.num_nodes)


def _fit(alphas: tuple[float, ...], lowered: float, degrees: Array) -> list[float]:
    """Fits one level after the other; the duplication of parts up to 16 is `lowered` times."""
    shares: list[float] = []
    for level, factor in enumerate(alphas):
        target = 1 + (factor - 1) * (lowered if level < _MATCHED - 1 else 1.0)
        low, high = 0.0, 1.0 - sum(shares)
        for _ in range(30):
            middle = (low + high) / 2
            if _expected_alpha([*shares, middle], level + 1, degrees) < target:
                low = middle
            else:
                high = middle
        shares.append(low)
    return shares


def _group_size(spec: GraphSpec) -> int:
    """A power of two."""
    most = max(_LEAST_GROUP, min(_LARGEST_GROUP, spec.num_nodes // _LEAST_GROUPS))
    return 1 << (most.bit_length() - 1)


@lru_cache(maxsize=16)
def _class_weights(classes: int, sigma: float) -> Tensor:
    """[classes] float64, falling: means of a lognormal over as many quantiles, 1 on average."""
    normal = statistics.NormalDist()
    # The heaviest share q of the nodes holds Phi(sigma - z(1 - q)) of the weight.
    shares = [0.0]
    shares += [normal.cdf(sigma + normal.inv_cdf(i / classes)) for i in range(1, classes)]
    return torch.tensor([*shares, 1.0], dtype=torch.float64).diff() * classes


class _Tables:
    """What draws need, on a device."""

    def __init__(self, spec: LocalGraphSpec, device: torch.device | str) -> None:
        self.group = _group_size(spec)
        self.groups = -(-spec.num_nodes // self.group)
        weights = _class_weights(self.group, spec.sigma)
        # The class of the node at each place of a group, and the place of each class.
        places = torch.arange(self.group)
        multiplier = int(self.group * 0.6180339887498949) | 1
        place_of_class = places * multiplier % self.group
        class_at = torch.empty_like(places)
        class_at[place_of_class] = places
        by_place = weights[class_at]
        before = torch.cat([by_place.new_zeros(1), by_place.cumsum(0)]) / by_place.sum()
        self.before = (before * (1 << 32)).round().long().to(device)
        bounds = torch.cat([weights.new_zeros(1), weights.cumsum(0)]) / weights.sum()
        knots = torch.arange((1 << _KNOT_BITS) + 1, dtype=torch.float64) / (1 << _KNOT_BITS)
        above = torch.searchsorted(bounds, knots).clamp_(1, self.group)
        part = (knots - bounds[above - 1]) / (bounds[above] - bounds[above - 1])
        # In units of 1/2^16 of a class.
        self.knots = ((above - 1 + part) * 65536).long().to(device)
        self.places = place_of_class.to(device)
        shares = torch.tensor(level_shares(spec), dtype=torch.float64).cumsum(0)
        self.levels = (shares[:-1] * (1 << _LEVEL_BITS)).round().long().to(device)


def make_local_indptr(spec: LocalGraphSpec, device: torch.device | str) -> Tensor:
    """The CSC offsets of all nodes, int64 [num_nodes + 1]."""
    tables, n = _Tables(spec, device), spec.num_nodes
    indptr = torch.empty(n + 1, dtype=torch.int64, device=device)
    indptr[n] = spec.num_edges
    size, groups = tables.group, tables.groups
    for begin in range(0, n, CHUNK):
        node = torch.arange(begin, min(n, begin + CHUNK), device=device)
        group, place = node // size, node % size
        first = group * spec.num_edges // groups
        count = (group + 1) * spec.num_edges // groups - first
        # The last group may have fewer nodes than the others.
        group_sizes = torch.where(group == groups - 1, n - (groups - 1) * size, size)
        first += count * tables.before[place] // tables.before[group_sizes]
        indptr[begin : begin + node.numel()] = first
    return indptr


def fill_local_indices(
    spec: LocalGraphSpec, indptr: Tensor, nodes: tuple[int, int], out: Tensor
) -> Tensor:
    """Writes the in-neighbours of destinations [begin, end) to `out`.

    Takes about 1.5 GiB besides `out`.

    Args:
        indptr: [num_nodes + 1] offsets of all nodes.
    """
    tables, device = _Tables(spec, out.device), out.device
    n, size, groups = spec.num_nodes, tables.group, tables.groups
    keys = [stream_key(spec.seed, tag) for tag in (31, 32)]
    begin, end = nodes
    first, last = int(indptr[begin]), int(indptr[end])
    ends = indptr[begin + 1 : end + 1]
    for start in range(first, last, CHUNK):
        stop = min(last, start + CHUNK)
        positions = torch.arange(start, stop, device=device)
        group = (torch.searchsorted(ends, positions, right=True) + begin) // size
        del positions
        drawn = hash_range(keys[0], start, stop, device)
        level = torch.searchsorted(tables.levels, shift_right(drawn, 64 - _LEVEL_BITS), right=True)
        # The groups of the block of this level.
        block = (group << level) // groups
        low = (block * groups + (1 << level) - 1) >> level
        high = ((block + 1) * groups + (1 << level) - 1) >> level
        drawn &= (1 << _GROUP_BITS) - 1
        group = low + (drawn * (high - low) >> _GROUP_BITS)
        del block, low, high, level
        drawn = hash_range(keys[1], start, stop, device)
        knot = shift_right(drawn, 64 - _KNOT_BITS)
        within = shift_right(drawn, 64 - _KNOT_BITS - _FRACTION_BITS)
        within &= (1 << _FRACTION_BITS) - 1
        at = tables.knots[knot]
        at += (tables.knots[knot + 1] - at) * within >> _FRACTION_BITS
        place = tables.places[(at >> 16).clamp_(max=size - 1)]
        source = group * size + place
        # Places that the last group lacks.
        source = torch.where(source < n, source, source - size if groups > 1 else source % n)
        out[start - first : stop - first] = source
    return out


def make_local_csc(
    spec: LocalGraphSpec,
    device: torch.device | str,
    nodes: tuple[int, int] | None = None,
    index_dtype: torch.dtype = torch.int32,
) -> tuple[Tensor, Tensor]:
    """CSC of destination nodes [begin, end) (all by default): offsets from 0, and in-neighbours."""
    begin, end = nodes or (0, spec.num_nodes)
    whole = make_local_indptr(spec, device)
    indptr = whole[begin : end + 1].clone()
    first = int(indptr[0])
    indices = torch.empty(int(indptr[-1]) - first, dtype=index_dtype, device=device)
    fill_local_indices(spec, whole, (begin, end), indices)
    return indptr.sub_(first), indices
