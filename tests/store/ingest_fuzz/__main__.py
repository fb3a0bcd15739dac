"""Runs random ingests in processes of their own: a crash, a hang and too much memory are findings.

Usage: ``python -m tests.store.ingest_fuzz --seed 0 --tables 5000 [--minutes M] [--jobs N]``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.store.ingest_fuzz.case import Case, parse
from tests.store.ingest_fuzz.generate import Generator
from tests.store.ingest_fuzz.run import limit_file_sizes, run_case
from tests.store.ingest_fuzz.shrink import kind_of, shrink

_MOST_SECONDS = 400.0  # of a large case while other work uses the cores
_MOST_BYTES = 4 << 30


class Worker:
    """A process that runs cases."""

    def __init__(self) -> None:
        self._connection, other = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(other,), daemon=True
        )
        self._process.start()
        other.close()

    def start(self, seed: int, large: bool) -> None:
        """Begins a case."""
        self._connection.send((seed, large))
        self.seed, self._begin = seed, time.monotonic()

    def ready(self) -> Connection:
        """What becomes readable when the case is done."""
        return self._connection

    def result(self) -> tuple[bool, str | None]:
        """Returns whether the case is done, and its finding."""
        if self._connection.poll():
            try:
                return True, self._connection.recv()
            except EOFError:
                self._process.join()
                return True, f"crash: exit code {self._process.exitcode}"
        seconds = time.monotonic() - self._begin
        if seconds > _MOST_SECONDS or self._memory() > _MOST_BYTES:
            what = "hang" if seconds > _MOST_SECONDS else "memory"
            self.close()
            return True, f"{what}: {seconds:.0f} s"
        return False, None

    @property
    def is_alive(self) -> bool:
        """Whether it can run another case."""
        return self._process.is_alive()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()

    def _memory(self) -> int:
        try:
            with open(f"/proc/{self._process.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0


def _serve(connection: Connection) -> None:
    limit_file_sizes()
    while True:
        seed, large = connection.recv()
        connection.send(_finding(Generator(seed, large).case()))


def _finding(case: Case) -> str | None:
    try:
        return run_case(case)
    except Exception:
        return "fuzzer: " + traceback.format_exc()[-1500:]


def fuzz(seed: int, tables: int, minutes: float | None, jobs: int, large: bool) -> Counter[str]:
    """Runs cases, and prints those with a finding; returns the kinds of findings."""
    workers = [Worker() for _ in range(jobs)]
    start, following, kinds, done = time.monotonic(), seed, Counter[str](), 0
    idle = list(workers)
    busy: list[Worker] = []
    while busy or idle:
        over = minutes is not None and time.monotonic() - start > minutes * 60
        while idle and following < seed + tables and not over:
            worker = idle.pop()
            worker.start(following, large)
            busy.append(worker)
            following += 1
        if not busy:
            break
        wait([worker.ready() for worker in busy], timeout=0.5)
        for worker in [*busy]:
            is_done, finding = worker.result()
            if not is_done:
                continue
            done += 1
            busy.remove(worker)
            if finding is not None:
                kinds[str(kind_of(finding))[:60]] += 1
                print(f"seed {worker.seed}: {finding}", flush=True)
            if not worker.is_alive:
                worker = Worker()
            idle.append(worker)
    for worker in idle:
        worker.close()
    print(f"{done} ingests, {sum(kinds.values())} findings, {time.monotonic() - start:.0f} s")
    return kinds


def main() -> int:
    """Runs the command."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=0, help="the first seed")
    arguments.add_argument("--tables", type=int, default=1000, help="the number of ingests")
    arguments.add_argument("--minutes", type=float, help="stop after so many minutes")
    arguments.add_argument("--jobs", type=int, default=1, help="the number of processes")
    arguments.add_argument("--no-large", action="store_true", help="no files of many megabytes")
    arguments.add_argument("--shrink", type=int, help="make the case of this seed smaller")
    arguments.add_argument("--case", help="run a case as --shrink prints it")
    args = arguments.parse_args()
    if args.shrink is not None or args.case:
        limit_file_sizes()
        case = parse(args.case) if args.case else Generator(args.shrink, not args.no_large).case()
        print(_finding(case))
        if not args.case:
            smaller = shrink(case, run_case)
            print(smaller, _finding(smaller), sep="\n")
        return 0
    kinds: dict[str, Any] = fuzz(args.seed, args.tables, args.minutes, args.jobs, not args.no_large)
    for kind, count in kinds.most_common():  # type: ignore[attr-defined]
        print(f"{count:6} {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
