"""Synthetic graphs of the sizes of well-known data sets, for all benchmarks and all peers.

Chung-Lu graphs: node weights follow a lognormal distribution fitted to the mean and the median of
the data set's degrees, and both a node's in-degree and its chance to be somebody's in-neighbour are
proportional to its weight. Heavy nodes lie scattered over the ids; there are no communities.

Everything is integer arithmetic on hashed counters, so a preset is the same graph on every device,
and any range of edges can be made alone, without a sort: each rank makes just its own share.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from inputs.counter_hash import CHUNK, hash_range, shift_right, stream_key

# The cumulative weight is tabulated at 2^16 knots and interpolated with 24 bits in between.
_KNOT_BITS = 16
KNOTS = 1 << _KNOT_BITS
_FRACTION_BITS = 24


@dataclass(frozen=True)
class GraphSpec:
    """A graph, and what a training run on the data set of that size looks like."""

    name: str
    num_nodes: int
    num_edges: int
    sigma: float  # of the lognormal weights
    feature_dim: int
    num_classes: int
    train_nodes: int
    seed: int = 20261121

    def scaled(self, divisor: float) -> GraphSpec:
        """The same degrees with 1/divisor of the nodes."""
        return replace(
            self,
            name=f"{self.name}/{divisor:g}",
            num_nodes=int(self.num_nodes / divisor),
            num_edges=int(self.num_edges / divisor),
            train_nodes=int(self.train_nodes / divisor),
        )

    def denser(self, factor: float) -> GraphSpec:
        """The same nodes with `factor` times the edges."""
        edges = int(self.num_edges * factor)
        return replace(self, name=f"{self.name}*{factor:g}", num_edges=edges)

    def node_range(self, rank: int, world: int) -> tuple[int, int]:
        """The contiguous destination nodes of a rank when the graph is split over ranks."""
        return self.num_nodes * rank // world, self.num_nodes * (rank + 1) // world


PRESETS = {
    spec.name: spec
    for spec in (
        GraphSpec("tiny", 20_000, 400_000, 1.15, 32, 7, 2_000),
        GraphSpec("cora", 2_708, 10_556, 0.72, 1_433, 7, 140),
        # ogbn-arxiv with both directions of each edge
        GraphSpec("arxiv", 169_343, 2_315_598, 1.28, 128, 40, 90_941),
        # ogbn-products
        GraphSpec("products", 2_449_029, 123_718_280, 1.15, 100, 47, 196_615),
        # ogbn-papers100M with both directions of each edge
        GraphSpec("papers", 111_059_956, 3_228_124_712, 1.3, 128, 172, 1_207_179),
        GraphSpec("reddit", 232_965, 114_615_892, 1.0, 602, 41, 153_431),
        # MGG's Table 3 with its counts, which are of both directions of each edge of enwiki-2013
        # and of one direction of the others
        GraphSpec("enwiki", 4_203_323, 202_623_226, 1.5, 96, 128, 420_332),
        GraphSpec("mgg-products", 2_449_029, 61_859_140, 1.15, 100, 64, 196_615),
        GraphSpec("proteins", 132_534, 39_561_252, 1.1, 128, 112, 86_619),
        GraphSpec("orkut", 3_072_441, 117_185_083, 1.0, 128, 32, 307_244),
        # ogbn-arxiv's nodes and edges, with the features that MG-GCN 6.4 gives it
        GraphSpec("arxiv512", 169_343, 1_166_243, 1.28, 512, 40, 90_941),
    )
}


def get_spec(name: str) -> GraphSpec:
    """A preset by name; "NAME/D" has 1/D of its nodes and edges, "NAME*K" has K times its edges."""
    base, sign, number = re.fullmatch(r"([^/*]*)([/*]?)(.*)", name, re.DOTALL).groups()
    if base not in PRESETS:
        raise ValueError(
            f"unknown graph {name!r}; there are {', '.join(PRESETS)}, NAME/DIVISOR and NAME*FACTOR"
        )
    spec = PRESETS[base]
    if not sign:
        return spec
    return spec.scaled(float(number)) if sign == "/" else spec.denser(float(number))


@lru_cache(maxsize=8)
def _weight_table(num_nodes: int, sigma: float, device: str) -> torch.Tensor:
    """At knot k: how many of the heaviest nodes together hold k/2^16 of the weight."""
    # Lorenz curve of a lognormal: the heaviest share q of the nodes holds Phi(sigma - z(1 - q)) of
    # the weight, so q = Phi(z(u) - sigma).
    quantile = statistics.NormalDist().inv_cdf
    table = [0] * (KNOTS + 1)
    for knot in range(1, KNOTS):
        z = quantile(knot / KNOTS) - sigma
        table[knot] = int(num_nodes * (0.5 * math.erfc(-z / math.sqrt(2.0))))
    table[KNOTS] = num_nodes
    for knot in range(1, KNOTS + 1):
        table[knot] = max(table[knot], table[knot - 1])
    return torch.tensor(table, dtype=torch.int64).to(device)


def coprime(n: int, fraction: float) -> int:
    """A multiplier near `fraction` of n that makes `i -> multiplier * i mod n` a bijection."""
    if n <= 1:
        return 1
    candidate = max(1, int(n * fraction)) | 1
    while math.gcd(candidate, n) != 1:
        candidate += 2
    return candidate % n


def _scatter_of_ranks(spec: GraphSpec) -> tuple[int, int]:
    """The bijection weight rank -> node id is (rank * first + second) mod num_nodes."""
    return coprime(spec.num_nodes, 0.6180339887498949), spec.num_nodes // 3


def _edges_before(rank: torch.Tensor, spec: GraphSpec, table: torch.Tensor) -> torch.Tensor:
    """How many edges end in the `rank` heaviest nodes, floor(E * cumulative weight)."""
    knot = torch.searchsorted(table, rank, right=False).clamp_(min=1)
    low, high = table[knot - 1], table[knot]
    within = (rank - low).mul_(spec.num_edges)
    within = torch.div(within, (high - low).clamp_(min=1), rounding_mode="floor")
    before = (knot - 1) * spec.num_edges + within
    before >>= _KNOT_BITS
    before[rank <= 0] = 0
    return before


def make_indptr(spec: GraphSpec, device: torch.device | str) -> torch.Tensor:
    """The CSC offsets of all nodes, int64 [num_nodes + 1]."""
    n = spec.num_nodes
    table = _weight_table(n, spec.sigma, str(device))
    multiplier, offset = _scatter_of_ranks(spec)
    inverse = pow(multiplier, -1, n) if n > 1 else 0
    indptr = torch.zeros(n + 1, dtype=torch.int64, device=device)
    for begin in range(0, n, CHUNK):
        end = min(n, begin + CHUNK)
        rank = torch.arange(begin, end, device=device, dtype=torch.int64)
        rank -= offset
        rank %= n
        rank *= inverse
        rank %= n
        degree = _edges_before(rank + 1, spec, table) - _edges_before(rank, spec, table)
        indptr[begin + 1 : end + 1] = degree
    torch.cumsum(indptr, 0, out=indptr)
    if int(indptr[-1]) != spec.num_edges:
        raise AssertionError(f"{int(indptr[-1])} edges made, {spec.num_edges} expected")
    return indptr


def fill_indices(spec: GraphSpec, begin: int, out: torch.Tensor) -> torch.Tensor:
    """Writes the in-neighbours at CSC positions [begin, begin + len(out)) to `out`."""
    key = stream_key(spec.seed, 1)
    for chunk in range(0, out.numel(), CHUNK):
        size = min(CHUNK, out.numel() - chunk)
        first = begin + chunk
        hashed = hash_range(key, first, first + size, out.device)
        out[chunk : chunk + size].copy_(weighted_nodes(spec, hashed))
    return out


def weighted_nodes(spec: GraphSpec, hashed: torch.Tensor) -> torch.Tensor:
    """Draws nodes, int64, each with the chance of its weight, from uniform bits."""
    n = spec.num_nodes
    table = _weight_table(n, spec.sigma, str(hashed.device))
    multiplier, offset = _scatter_of_ranks(spec)
    node = ranks_by_weight(hashed, table, n)
    node *= multiplier
    node += offset
    node %= n
    return node


def ranks_by_weight(hashed: torch.Tensor, table: torch.Tensor, n: int) -> torch.Tensor:
    """Draws weight ranks, each with the chance of its weight, from uniform bits.

    Args:
        hashed: uniform int64.
        table: [KNOTS + 1] int64; at knot k: how many of the heaviest nodes together have the share
            k / KNOTS of the weight.
        n: number of nodes.
    """
    knot = shift_right(hashed, 64 - _KNOT_BITS)
    fraction = shift_right(hashed, 64 - _KNOT_BITS - _FRACTION_BITS)
    fraction &= (1 << _FRACTION_BITS) - 1
    low = table[knot]
    span = table[knot + 1] - low
    span *= fraction
    span >>= _FRACTION_BITS
    low += span
    return low.clamp_(max=n - 1)


def make_csc(
    spec: GraphSpec,
    device: torch.device | str,
    nodes: tuple[int, int] | None = None,
    index_dtype: torch.dtype = torch.int32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """CSC of destination nodes [begin, end) (all by default): offsets from 0, and in-neighbours."""
    begin, end = nodes or (0, spec.num_nodes)
    # A copy, so that the offsets of the other nodes are freed.
    indptr = make_indptr(spec, device)[begin : end + 1].clone()
    first_edge, last_edge = int(indptr[0]), int(indptr[-1])
    indices = torch.empty(last_edge - first_edge, dtype=index_dtype, device=device)
    fill_indices(spec, first_edge, indices)
    return indptr.sub_(first_edge), indices
