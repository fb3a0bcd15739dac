"""The specification of personalised PageRank by forward push, in plain Python."""

from __future__ import annotations

from collections import Counter

from peergraph.reference.sampling import Csc
from peergraph.reference.walks import neighbors

WHOLE = 1 << 62


def forward_push(
    csc: Csc, seed: int, num_neighbors: int, alpha: float, eps: float
) -> tuple[list[int], list[float]]:
    """Returns the nodes and the weights that :meth:`peergraph.sampling.PprSampler.neighbors` must
    return for a seed, without padding.

    The weights are not rounded to float32.
    """
    estimates, _ = push_all(csc, seed, alpha, eps)
    ranked = sorted(estimates, key=lambda node: (-estimates[node], node))[:num_neighbors]
    return ranked, [estimates[node] / WHOLE for node in ranked]


def push_all(csc: Csc, seed: int, alpha: float, eps: float) -> tuple[Counter[int], Counter[int]]:
    """Returns the estimates and the residuals of all nodes, in units of 2**-62."""
    fraction, unit = int(alpha * 2.0**64), int(eps * 2.0**62)
    estimates: Counter[int] = Counter()
    residuals: Counter[int] = Counter({seed: WHOLE})
    due = [seed]
    while due:
        shares = {}
        for node in due:
            lists = neighbors(csc, node)
            gain = residuals[node] * fraction >> 64
            estimates[node] += gain
            shares[node] = (residuals[node] - gain) // len(lists) if lists else 0
            rest = residuals[node] - gain - shares[node] * len(lists)
            residuals[node] = rest if lists else 0
        for node in due:
            lists = neighbors(csc, node)
            if unit * len(lists) > WHOLE:  # a seed: of so many neighbours none gets enough
                continue
            for neighbor in lists:
                residuals[neighbor] += shares[node]
        due = [
            node
            for node, amount in residuals.items()
            if amount >= unit * max(len(neighbors(csc, node)), 1)
        ]
    return estimates, residuals
