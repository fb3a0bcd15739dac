"""Time and device memory of the structure of a large graph, built and reversed piece by piece.

    python benchmarks/offload_structure.py --nodes 111059956 --edges 3340000000 --world 1

Edges are drawn anew for each piece, so that the host holds none. `rest` is what stays on the device
of one rank, `peak` the most that was allocated, both in bytes for each edge of the rank.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from harness.common import main, parser
from harness.ranks import Session, synchronize

from peergraph.fullgraph.layout.edge_share import PIECE_EDGES, EdgeShare, UnreadShare
from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.structure.build_structure import build_structure


class RandomEdges:
    """Edges between random nodes, drawn anew by the number of the piece."""

    def __init__(self, num_nodes: int, num_edges: int) -> None:
        self.num_edges = num_edges
        self._num_nodes = num_nodes

    def digest(self) -> str:
        return f"{self._num_nodes} nodes, {self.num_edges} random edges"

    def read(self, rank: int, world_size: int, device: torch.device) -> EdgeShare:
        begin = self.num_edges * rank // world_size
        end = self.num_edges * (rank + 1) // world_size
        generator = torch.Generator(device).manual_seed(rank)
        source, destination = torch.randint(
            self._num_nodes, (2, end - begin), generator=generator, device=device, dtype=torch.int32
        )
        return EdgeShare(source, destination, torch.arange(begin, end, device=device))


def run(session: Session) -> None:
    args, group, device = session.args, session.group, session.device
    layout = RowLayout.contiguous(group, args.nodes)
    edges = -(-args.edges // args.world)
    share = UnreadShare(
        RandomEdges(args.nodes, args.edges),
        group.rank,
        args.world,
        device,
        -(-edges // PIECE_EDGES),
    )
    kept: list[object] = []

    def timed(name: str, make: Callable[[], object]) -> None:
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_gpu else 0
        begin = time.perf_counter()
        with session.section(name, system=name):
            kept.append(make())
            synchronize(device)
            seconds = time.perf_counter() - begin
            rest = (torch.cuda.memory_allocated() - before if on_gpu else 0) / edges
            peak = (torch.cuda.max_memory_allocated() - before if on_gpu else 0) / edges
            session.note(f"{name}: {seconds:.2f} s, rest {rest:.2f}, peak {peak:.2f} bytes an edge")
            session.recorder.note(system=name, ms=seconds * 1e3, rest=rest, peak=peak)

    timed("build", lambda: build_structure(layout, layout, share))
    structure = kept[-1]
    timed("chunks", lambda: ChunkedCsc(structure, Chunks.even(layout, args.chunks)))
    csc = kept[-1]
    assert isinstance(csc, ChunkedCsc)
    timed("reverse", csc.reversed)
    timed("transfers", csc.transfers)
    session.note(f"rows of a pass: {csc.transfers().counts}")


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--nodes", type=int, default=111_059_956)
    result.add_argument("--edges", type=int, default=3_340_000_000)
    result.add_argument("--chunks", type=int, default=32)
    return result


if __name__ == "__main__":
    sys.exit(main("offload_structure", run, arguments(), ()))
