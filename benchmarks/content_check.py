"""The comparison of edges on a GPU with the digest of those that their structure was made from.

    python benchmarks/content_check.py

For each number of edges: microseconds of the GPU, and of the host, for one comparison
(`ContentCheck.is_unchanged`); for the same with `torch.equal` and a copy, which makes the host
wait; and for the sum over the edges that a layer computes then, of rows of `--columns` float32.
`rate` is the comparison's rate of reading memory. Times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from harness.gpu_time import gpu_ms
from harness.markdown import table

from peergraph.aggregate import Csc
from peergraph.memory import ContentCheck

_CALLS = 50
_ROUNDS = 15


def gpu_time(call: Callable[[], Any]) -> float:
    """Microseconds of the GPU for one call, of which many are queued together."""
    return 1e3 * gpu_ms(call, rounds=_ROUNDS, warmup=0, calls=_CALLS, hold=True)


def host_time(call: Callable[[], Any]) -> float:
    """Microseconds of the host for one call."""
    times = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - start) / _CALLS * 1e6)
    return statistics.median(times)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=128, help="of the rows that a layer sums")
    parser.add_argument("--nodes", type=int, default=100_000)
    args = parser.parse_args()
    x = torch.randn(args.nodes, args.columns, device="cuda")
    head = ["dtype", "edges", "GPU us", "GB/s", "host us", "torch.equal us", "sum us"]
    lines = []
    for count in (1_000, 100_000, 500_000, 2_000_000, 10_000_000):
        for dtype in (torch.int64, torch.int32):
            edges = torch.randint(args.nodes, (2, count), dtype=dtype, device="cuda")
            csc = Csc.from_edge_index(edges, args.nodes, args.nodes)
            check, copy = ContentCheck([edges]), edges.clone()

            def compare(check: ContentCheck = check, edges: torch.Tensor = edges) -> None:
                check.is_unchanged([edges])

            def peer(copy: torch.Tensor = copy, edges: torch.Tensor = edges) -> None:
                torch.equal(edges, copy)

            def layer(csc: Csc = csc) -> None:
                csc.spmm("copy_u", "sum", x)

            compare()
            layer()
            of_gpu, of_host = gpu_time(compare), host_time(compare)
            columns = [
                f"{of_gpu:.1f}",
                f"{edges.nbytes / of_gpu / 1e3:.0f}",
                f"{of_host:.1f}",
                f"{host_time(peer):.1f}",
                f"{gpu_time(layer):.1f}",
            ]
            lines.append([str(dtype)[6:], count, *columns])
    print("\n".join(table(head, lines)))


if __name__ == "__main__":
    main()
