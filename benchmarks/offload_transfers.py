"""How fast a pass over chunks moves rows between host and GPUs, beside plain copies of the driver.

    python benchmarks/offload_transfers.py --rows 16000000 --dim 128 --chunks 16 --world 1

`copy ...` are single copies between pinned memory and the GPU. `pass ...` visit all chunks of a
store in host memory: read, written, both, and both beside matrix products. `sources` gather the
distinct source rows of each chunk of a random graph, `gradients` add theirs back. All ranks run at
once; gbs_in and gbs_out are of one rank, 10^9 bytes a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from harness.common import main, measure, parser
from harness.ranks import Session, synchronize
from torch import Tensor

from peergraph.fullgraph.layout.row_layout import RowLayout
from peergraph.fullgraph.offload.chunks.chunked_csc import ChunkedCsc
from peergraph.fullgraph.offload.chunks.chunks import Chunks
from peergraph.fullgraph.offload.passes.chunk_pass import ChunkPass
from peergraph.fullgraph.offload.rows.row_allocator import RowAllocator
from peergraph.fullgraph.offload.rows.row_store import RowStore
from peergraph.fullgraph.offload.rows.transfer_counts import TransferCounts
from peergraph.fullgraph.structure.partitioned_csc import PartitionedCsc

Step = Callable[[], TransferCounts]


class Case:
    """Stores and chunks of one run."""

    def __init__(self, session: Session) -> None:
        args = session.args
        self.session = session
        self.layout = RowLayout.contiguous(session.group, args.rows * args.world)
        self.chunks = Chunks.even(self.layout, args.chunks)
        self.stores = RowAllocator(session.group, 1 << 40)
        start = time.perf_counter()
        self.host = [self._store(), self._store()]
        synchronize(session.device)
        session.note(f"allocated and pinned in {time.perf_counter() - start:.1f} s")
        session.recorder.note(
            system="allocation", seconds=time.perf_counter() - start, bytes=2 * self.bytes
        )
        self.weight = torch.randn(args.dim, args.dim, device=session.device) / args.dim

    def _store(self) -> RowStore:
        args = self.session.args
        store = self.stores.allocate(self.layout, (args.dim,), torch.float32, tier="host")
        store.zero_()
        return store

    @property
    def bytes(self) -> int:
        """Of one store of this rank."""
        return self.host[0].num_bytes

    def copies(self, reads: bool, writes: bool) -> Step:
        """Plain copies of one chunk after the other."""
        rows = [self.host[0].empty(self.chunks.largest) for _ in range(2)]
        on_gpu = self.session.device.type == "cuda"
        streams = [torch.cuda.Stream() for _ in range(2)] if on_gpu else [None, None]

        def copy(stream: torch.cuda.Stream | None, is_read: bool) -> None:
            for chunk in range(self.chunks.count):
                start, stop = self.chunks.range(chunk)
                memory = self.host[not is_read].memory[start:stop]
                on_device = rows[not is_read][: stop - start]
                with torch.cuda.stream(stream):
                    if is_read:
                        on_device.copy_(memory, non_blocking=True)
                    else:
                        memory.copy_(on_device, non_blocking=True)

        def run() -> TransferCounts:
            for stream, is_read in zip(streams, (True, False), strict=True):
                if stream is not None:
                    stream.wait_stream(torch.cuda.current_stream())
                if reads if is_read else writes:
                    copy(stream, is_read)
            for stream in streams:
                if stream is not None:
                    torch.cuda.current_stream().wait_stream(stream)
            return TransferCounts(self.bytes * reads, self.bytes * writes)

        return run

    def passes(self, reads: bool, writes: bool, products: int) -> Step:
        """A pass that reads one store and writes the other."""
        one, other = self.host
        result = other.empty(self.chunks.largest).zero_()

        def run() -> TransferCounts:
            with ChunkPass(self.chunks, reads=[one] * reads, writes=[other] * writes) as chunk_pass:
                for chunk in chunk_pass:
                    rows = chunk.rows(one) if reads else result[: chunk.stop - chunk.start]
                    for _ in range(products):
                        rows = rows @ self.weight
                    if writes:
                        chunk.write(other, rows)
            return chunk_pass.counts

        return run

    def edges(self) -> ChunkedCsc:
        """A random graph whose destinations have most of their sources among a window of rows."""
        args, layout, device = self.session.args, self.layout, self.session.device
        count = layout.local_count
        generator = torch.Generator(device).manual_seed(self.session.group.rank)
        degrees = torch.full((count,), args.degree, device=device)
        rows = torch.arange(count, device=device, dtype=torch.int32)
        destination = rows.repeat_interleave(degrees)
        spread = max(1, count // args.chunks)
        near = torch.randint(
            spread, destination.shape, device=device, generator=generator, dtype=torch.int32
        )
        first = layout.offsets[self.session.group.rank]
        source = (destination + near + first) % layout.size
        anywhere = torch.randint(layout.size, (count,), device=device, generator=generator)
        source[:: args.degree] = anywhere.to(source.dtype)
        counts = [rank_rows * args.degree for rank_rows in layout.counts]
        edges = RowLayout(self.session.group, counts, lambda: torch.arange(sum(counts)))
        resident = PartitionedCsc.from_local_edges(layout, layout, edges, source, destination)
        return ChunkedCsc(resident, self.chunks)

    def sources(self, csc: ChunkedCsc) -> Step:
        """Sums over neighbours whose rows are in host memory."""
        store = self.host[0]

        def run() -> TransferCounts:
            with ChunkPass(self.chunks, sources=[(store, csc)]) as chunk_pass:
                for chunk in chunk_pass:
                    rows, structure = chunk.sources(store)
                    structure.spmm("copy_u", "sum", rows)
            return chunk_pass.counts

        return run

    def gradients(self, csc: ChunkedCsc) -> Step:
        """Adds rows to their owners in host memory."""
        store = self.host[1]
        transfers = csc.transfers()
        ones = torch.ones(transfers.capacity, self.session.args.dim, device=self.session.device)

        def run() -> TransferCounts:
            with ChunkPass(self.chunks, gradients=[(store, csc)]) as chunk_pass:
                for chunk in chunk_pass:
                    rows: Tensor = ones[: len(chunk.source_rows(csc))]
                    chunk.add_source_gradients(store, rows)
            return chunk_pass.counts

        return run


def time_step(session: Session, system: str, step: Step) -> None:
    with session.section(system, system=system):
        counts = step()
        timing = measure(session, lambda *_: step())
        session.recorder.add(
            timing,
            system=system,
            gbs_in=counts.to_device / timing.ms / 1e6,
            gbs_out=counts.from_device / timing.ms / 1e6,
            gb_to_ranks=counts.to_ranks / 1e9,
            gb_kept=counts.reused / 1e9,
        )


def run(session: Session) -> None:
    with session.stage("stores"):
        case = Case(session)
    for name, reads, writes in (("in", 1, 0), ("out", 0, 1), ("both", 1, 1)):
        time_step(session, f"copy {name}", case.copies(bool(reads), bool(writes)))
        time_step(session, f"pass {name}", case.passes(bool(reads), bool(writes), 0))
    products = session.args.products
    time_step(session, "pass both, products", case.passes(True, True, products))
    time_step(session, "products alone", products_alone(case, products))
    with session.stage("graph"):
        csc = case.edges()
        start = time.perf_counter()
        counts = csc.transfers().counts
        synchronize(session.device)
        session.note(f"transfers planned in {time.perf_counter() - start:.2f} s: {counts}")
    time_step(session, "sources", case.sources(csc))
    time_step(session, "gradients", case.gradients(csc))


def products_alone(case: Case, products: int) -> Step:
    rows = case.host[0].empty(case.chunks.largest).zero_()

    def run() -> TransferCounts:
        for _ in range(case.chunks.count * products):
            rows @ case.weight
        return TransferCounts()

    return run


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--rows", type=int, default=16_000_000, help="of each rank")
    result.add_argument("--dim", type=int, default=128)
    result.add_argument("--chunks", type=int, default=16)
    result.add_argument("--degree", type=int, default=8, help="in-edges of each row")
    result.add_argument("--products", type=int, default=8, help="matrix products of each chunk")
    return result


if __name__ == "__main__":
    sys.exit(main("offload_transfers", run, arguments(), ()))
