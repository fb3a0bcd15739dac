"""Runs many random situations: ``python -m tests.adapters.pyg.fuzz --count 1000``."""

from __future__ import annotations

import argparse
import sys

import torch

from .situations import KINDS, run


def main() -> None:
    """Prints each difference from plain PyG, and ends with an error if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, help="of the situations; default: all in turn")
    parser.add_argument("--seed", type=int, default=0, help="of the first situation")
    parser.add_argument("--count", type=int, default=100, help="of situations of each kind")
    parser.add_argument("--device", default="cpu", help="of the stores")
    args = parser.parse_args()
    torch.set_num_threads(1)
    differences = 0
    for kind in [args.kind] if args.kind else KINDS:
        for seed in range(args.seed, args.seed + args.count):
            try:
                difference = run(kind, seed, args.device)
            except Exception:
                print(f"{kind} {seed}: an error of the situation itself", flush=True)
                raise
            if difference:
                differences += 1
                print(f"{kind} {seed}: {difference}", flush=True)
        print(f"{kind}: {args.count} situations", flush=True)
    sys.exit(differences > 0)


main()
