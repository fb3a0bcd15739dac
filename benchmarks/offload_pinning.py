"""How fast host memory for rows is allocated and pinned, by the way in which it is done.

    python benchmarks/offload_pinning.py --gib 16 --threads 1,2,4,8,16 --world 1

`populate` maps the pages of new memory in threads. `register` pins memory whose pages are mapped,
as a whole. `populate in pieces` does both for ranges of 1 GiB, several at once. `torch` is
torch.empty(pin_memory=True). `copy` is a copy to the GPU from one such range, and `copy over two
pieces` one from the end of a range and the beginning of the next. Without a GPU nothing is pinned.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from harness.common import integers, main, parser
from harness.ranks import Session, synchronize
from torch import Tensor

import peergraph._C as _C

_PIECE = 1 << 30


class Memory:
    """New anonymous memory in huge pages, where the system has them."""

    def __init__(self, num_bytes: int) -> None:
        self._mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.content = torch.frombuffer(self._mapped, dtype=torch.uint8)
        self.address = self.content.data_ptr()
        self.num_bytes = num_bytes
        _C.ask_for_huge_pages(self.address, num_bytes)


def note(session: Session, system: str, threads: int, begin: float, num_bytes: int) -> None:
    """Records what took from `begin` until now."""
    synchronize(session.device)
    seconds = time.perf_counter() - begin
    rate = num_bytes / seconds / 1e9
    session.note(f"{system}, {threads} threads: {seconds:.2f} s, {rate:.1f} GB/s")
    session.recorder.note(system=system, threads=threads, ms=1e3 * seconds, gbs=rate)


def populate(session: Session, num_bytes: int, threads: int) -> None:
    """Maps pages in threads, then pins all at once in one."""
    memory = Memory(num_bytes)
    begin = time.perf_counter()
    _C.populate_pages(memory.address, num_bytes, threads)
    note(session, "populate", threads, begin, num_bytes)
    if session.device.type != "cuda":
        return
    index = session.device.index or 0
    begin = time.perf_counter()
    _C.register_host(index, memory.address, num_bytes)
    note(session, "register", 1, begin, num_bytes)
    begin = time.perf_counter()
    _C.unregister_host(index, memory.address)
    note(session, "unregister", 1, begin, num_bytes)


def populate_in_pieces(session: Session, num_bytes: int, threads: int, at_once: int) -> None:
    """Maps and pins ranges of 1 GiB, several of them at once."""
    memory = Memory(num_bytes)
    index = session.device.index or 0
    starts = list(range(0, num_bytes, _PIECE))

    def pin(start: int) -> None:
        size = min(_PIECE, num_bytes - start)
        _C.populate_pages(memory.address + start, size, max(1, threads // at_once))
        if session.device.type == "cuda":
            _C.register_host(index, memory.address + start, size)

    begin = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(pin, starts))
    note(session, f"populate in pieces, {at_once} at once", threads, begin, num_bytes)
    if session.device.type != "cuda":
        return
    if len(starts) > 1:
        half = _PIECE // 2
        copy(session, "copy", memory.content[:_PIECE])
        copy(session, "copy over two pieces", memory.content[half : half + _PIECE])
    for start in starts:
        _C.unregister_host(index, memory.address + start)


def copy(session: Session, system: str, rows: Tensor) -> None:
    """Copies to the GPU and back."""
    with session.section(system, system=system):
        target = torch.empty_like(rows, device=session.device)
        target.copy_(rows, non_blocking=True)
        synchronize(session.device)
        begin = time.perf_counter()
        target.copy_(rows, non_blocking=True)
        note(session, system, 0, begin, rows.numel())
        begin = time.perf_counter()
        rows.copy_(target, non_blocking=True)
        note(session, f"{system}, back", 0, begin, rows.numel())


def run(session: Session) -> None:
    args = session.args
    num_bytes = int(args.gib * (1 << 30))
    session.note(f"{len(os.sched_getaffinity(0))} processors, torch uses {torch.get_num_threads()}")
    for threads in args.threads:
        with session.section(f"populate, {threads} threads", system="populate", threads=threads):
            populate(session, num_bytes, threads)
    for at_once in args.at_once:
        with session.section(f"pieces, {at_once} at once", system="pieces", threads=at_once):
            populate_in_pieces(session, num_bytes, max(args.threads), at_once)
    if session.device.type == "cuda":
        with session.section("torch", system="torch"):
            begin = time.perf_counter()
            torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
            note(session, "torch", 1, begin, num_bytes)


def arguments() -> argparse.ArgumentParser:
    result = parser(__doc__.splitlines()[0], (), "")
    result.add_argument("--gib", type=float, default=16.0, help="of each allocation")
    result.add_argument("--threads", type=integers, default="1,4,16", help="that map pages")
    result.add_argument(
        "--at-once", type=integers, default="1,2,4,8", help="ranges that are pinned at once"
    )
    return result


if __name__ == "__main__":
    sys.exit(main("offload_pinning", run, arguments(), ()))
