"""Personalised PageRank of random seeds by forward push: the largest values of each seed.

    python benchmarks/ppr.py --world 1 --graph papers --peers torch
    python benchmarks/ppr.py --world 1 --device cpu --graph products/8 --peers torch

The peers: the same rounds of pushes, for all seeds at once, with torch's operations on the same
device ("torch"), whose sums must agree; exact values by power iteration with SciPy on the CPU
("scipy"), for graphs of up to a million edges (`--graph arxiv/4`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import torch
from harness.common import PLANS, floats, main, measure, parser
from harness.ranks import Session
from inputs.graphs import make_csc
from systems.systems import build_store, seed_sets
from torch import Tensor

from peergraph.sampling import PprSampler


def torch_pushes(
    indptr: Tensor, indices: Tensor, seeds: Tensor, keep: int, alpha: float, eps: float
) -> tuple[Tensor, Tensor]:
    """The rounds of Peergraph's sampler in float32, with pairs of seed and node in sorted lists."""
    count, device = indptr.numel() - 1, indptr.device
    pairs = torch.arange(seeds.numel(), device=device) * count + seeds
    residuals = torch.ones(seeds.numel(), device=device)
    estimates = torch.zeros_like(residuals)
    due = torch.arange(seeds.numel(), device=device)
    while due.numel():
        owner, node = pairs[due] // count, pairs[due] % count
        begin = indptr[node]
        degree = indptr[node + 1] - begin
        amounts = residuals[due]
        residuals[due] = 0
        estimates[due] += alpha * amounts
        ends = degree.cumsum(0)
        repeated = torch.repeat_interleave(degree)
        edges = torch.arange(repeated.numel(), device=device) - (ends - degree - begin)[repeated]
        reached = owner[repeated] * count + indices[edges]
        shares = ((1 - alpha) * amounts / degree)[repeated]
        both, places = torch.unique(torch.cat([pairs, reached]), return_inverse=True)
        old, new = places.split([pairs.numel(), reached.numel()])
        estimates = torch.zeros(both.numel(), device=device).index_copy_(0, old, estimates)
        residuals = torch.zeros_like(estimates).index_copy_(0, old, residuals)
        residuals.index_add_(0, new, shares)
        pairs = both
        degrees = indptr[pairs % count + 1] - indptr[pairs % count]
        due = (residuals >= eps * degrees.clamp(min=1)).nonzero().view(-1)
    return largest(pairs, estimates, count, seeds.numel(), keep)


def largest(
    pairs: Tensor, estimates: Tensor, count: int, num_seeds: int, keep: int
) -> tuple[Tensor, Tensor]:
    order = torch.argsort(estimates, descending=True, stable=True)
    order = order[torch.argsort(pairs[order] // count, stable=True)]
    owner = pairs[order] // count
    begins = torch.searchsorted(owner, torch.arange(num_seeds, device=pairs.device))
    place = torch.arange(order.numel(), device=pairs.device) - begins[owner]
    chosen = (place < keep) & (estimates[order] > 0)
    nodes = torch.full((num_seeds, keep), -1, device=pairs.device)
    weights = torch.zeros((num_seeds, keep), device=pairs.device)
    nodes[owner[chosen], place[chosen]] = pairs[order][chosen] % count
    weights[owner[chosen], place[chosen]] = estimates[order][chosen]
    return nodes, weights


def scipy_powers(indptr: Tensor, indices: Tensor, alpha: float) -> Callable[[Tensor, int], object]:
    import scipy.sparse

    degrees = np.diff(indptr.numpy())
    values = np.repeat((1 - alpha) / np.maximum(degrees, 1), degrees).astype(np.float32)
    count = degrees.size
    step = scipy.sparse.csr_matrix(
        (values, indices.numpy(), indptr.numpy()), shape=(count, count)
    ).T.tocsr()

    def run(seeds: Tensor, keep: int) -> object:
        here = np.zeros((count, seeds.numel()), np.float32)
        here[seeds.numpy(), np.arange(seeds.numel())] = 1
        rank = alpha * here
        while here.sum() > 1e-4 * seeds.numel():
            here = step @ here
            rank += alpha * here
        return torch.from_numpy(rank).topk(keep, dim=0)

    return run


def run(session: Session) -> None:
    args, spec = session.args, session.args.graph
    seeds = seed_sets(session, spec, args.seeds, torch.int64)
    sums = {}
    for plan in args.plans:
        with session.section(f"{plan} store", system="peergraph", plan=plan):
            store = build_store(session, plan)
            for eps in args.eps:
                sampler = PprSampler(store, num_neighbors=args.keep, alpha=args.alpha, eps=eps)
                timing = measure(
                    session, lambda i, _, s=sampler: s.neighbors(seeds[i % len(seeds)])
                )
                add(session, timing, eps, "peergraph", plan=plan)
                sums[eps] = float(sampler.neighbors(seeds[0]).weights.sum(dtype=torch.float64))
            store.close()
    if not (session.wants("torch") or session.wants("scipy")):
        return
    csc = make_csc(spec, session.device)
    for eps in args.eps:
        if session.wants("torch"):
            with session.section(f"torch {eps:g}", system="torch"):
                _, weights = torch_pushes(*csc, seeds[0], args.keep, args.alpha, eps)
                total = float(weights.sum(dtype=torch.float64))
                if eps in sums and abs(total / sums[eps] - 1) > 1e-3:
                    raise AssertionError(f"estimates add up to {sums[eps]}, torch's to {total}")
                timing = measure(
                    session,
                    lambda i, _, e=eps: torch_pushes(
                        *csc, seeds[i % len(seeds)], args.keep, args.alpha, e
                    ),
                )
                add(session, timing, eps, "torch", against=args.plans[0])
    if session.wants("scipy"):
        with session.section("scipy", system="scipy"):
            powers = scipy_powers(*(part.cpu() for part in csc), args.alpha)
            few = seeds[0][: args.scipy_seeds].cpu()
            timing = measure(session, lambda i, _: powers(few, args.keep))
            add(session, timing, None, "scipy", batch=few.numel())


def add(session: Session, timing: object, eps: float | None, system: str, **fields: object) -> None:
    args = session.args
    fields = {"batch": args.seeds, **fields}
    session.recorder.add(
        timing,
        system=system,
        graph=args.graph.name,
        setting=f"eps {eps:g}" if eps else "exact",
        **fields,
    )


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], PLANS, "replicated", graph="products")
    result.add_argument("--seeds", type=int, default=1024, help="of each rank")
    result.add_argument("--eps", type=floats, default="1e-4")
    result.add_argument("--alpha", type=float, default=0.15)
    result.add_argument("--keep", type=int, default=64, help="nodes of each seed")
    result.add_argument("--scipy-seeds", type=int, default=8, help="seeds of SciPy's batch")
    return result


if __name__ == "__main__":
    sys.exit(main("ppr", run, arguments(), peers=("torch", "scipy")))
