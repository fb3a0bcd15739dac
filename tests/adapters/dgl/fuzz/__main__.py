"""Runs many random programs: ``python -m tests.adapters.dgl.fuzz --count 1000``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

from peergraph.testing import run_ranks

from .situations import difference, on_device, on_ranks, situation

_AT_ONCE = 100  # programs of ranks that are started


def main() -> None:
    """Prints each difference from DGL, and ends with an error if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--count", type=int, default=1000, help="of programs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ranks", type=int, default=0, help="partitions the graphs over ranks")
    parser.add_argument("--chunks", type=int, default=0, help="of rows in host memory, each rank")
    args = parser.parse_args()
    torch.set_num_threads(1)
    differences = 0
    for first in range(args.seed, args.seed + args.count, _AT_ONCE):
        seeds = list(range(first, min(first + _AT_ONCE, args.seed + args.count)))
        for seed, text in _differences(seeds, args):
            print(f"{seed}: {text}", flush=True)
            differences += 1
    print(f"{args.count} programs, {differences} differences")
    sys.exit(differences > 0)


def _differences(seeds: list[int], args: argparse.Namespace) -> Iterator[tuple[int, str]]:
    if args.ranks == 0:
        texts = ((seed, on_device(seed, torch.device(args.device))) for seed in seeds)
        yield from ((seed, text) for seed, text in texts if text)
        return
    options = {"offload": True, "num_chunks": args.chunks} if args.chunks else {}
    by_rank = run_ranks(on_ranks, args.ranks, seeds, options, timeout_s=600, device=args.device)
    for seed, *outcomes in zip(seeds, *by_rank, strict=True):
        texts = [difference(*situation(seed, whole=True), each, "partitioned") for each in outcomes]
        yield from ((seed, text) for text in texts[:1] if text)


if __name__ == "__main__":
    main()
