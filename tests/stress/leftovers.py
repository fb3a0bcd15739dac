"""What ranks leave behind: files in shared memory, processes, open files, memory of GPUs."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from peergraph.testing import run_ranks
from tests.gpu_turns import LOCKS
from tests.held_resources import resident_bytes
from tests.shared_memory import in_use, shared_files

_BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
# What a driver rounds sizes to, and other users of a GPU may take meanwhile.
_GPU_SLACK = 512 << 20


def adopt_orphans() -> None:
    """Has processes whose parents have ended become children of this one, so that it sees them."""
    ctypes.CDLL(None).prctl(_BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)


def descendants(pid: int) -> dict[int, str]:
    """Processes begun by this one, directly or not, that have not ended: command by pid."""
    children: dict[int, list[int]] = {}
    names = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            text = (process / "stat").read_text()
            name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
            state, parent = rest.split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(process.name))
                names[int(process.name)] = name
    processes, todo = {}, [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            processes[child] = names[child]
            todo.append(child)
    return processes


def _free_memory() -> list[int]:
    return [torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())]


def _fill(sizes: list[int]) -> None:
    for gpu, size in enumerate(sizes):
        torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}").fill_(1)
        torch.cuda.synchronize(gpu)


def open_files() -> Counter[str]:
    """Counts the open files of this process, by path or kind.

    Files of the GPU driver, and locks by which tests take turns on GPUs, are left out.
    """
    counts: Counter[str] = Counter()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = os.readlink(link)
            if not target.startswith(("/dev/nvidia", LOCKS)):
                counts[target.partition(":[")[0]] += 1
    return counts


class Watch:
    """Compares what there is now with what there was at the beginning."""

    def __init__(self, device: str) -> None:
        # A run that fails nowhere, so that what stays for the next one is there.
        run_ranks(_free_memory, 1, device=device)
        self.on_gpus = device == "cuda"
        self.files = shared_files()
        self.processes = set(descendants(os.getpid()))
        self.open_files = open_files()
        self.gpu_memory = run_ranks(_free_memory, 1, device=device)[0] if self.on_gpus else []

    def leftovers(self) -> Iterator[str]:
        """What is there that was not there at the beginning, in words."""
        if files := _settled(lambda: shared_files() - self.files - in_use()):
            yield f"/dev/shm: {', '.join(sorted(files))}"
        if new := _settled(self._new_processes):
            yield f"processes: {', '.join(new)}"
        if new := open_files() - self.open_files:
            yield f"{new.total()} open files: {', '.join(sorted(new))}"
        if self.on_gpus:
            try:
                run_ranks(_fill, 1, [size - _GPU_SLACK for size in self.gpu_memory], device="cuda")
            except RuntimeError as error:
                yield f"GPU memory: {str(error).strip().splitlines()[-1]}"

    def _new_processes(self) -> list[str]:
        processes = descendants(os.getpid()).items()
        return [f"{name} {pid}" for pid, name in processes if pid not in self.processes]


def _settled(left: Callable[[], Collection[str]]) -> Collection[str]:
    """What is left, once that which is about to go is gone."""
    deadline = time.monotonic() + 5
    while (leftovers := left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftovers


@contextmanager
def growth_of_process() -> Iterator[dict[str, int]]:
    """Fills the dictionary with the growth of files, threads, and bytes of the host and of torch's
    GPUs, from the begin of the context to its end.
    """
    growth: dict[str, int] = {}
    before = _resources()
    yield growth
    after = _resources()
    growth.update({name: after[name] - before[name] for name in before})


def _resources() -> dict[str, int]:
    gc.collect()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return {
        "files": open_files().total(),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "bytes": resident_bytes(),
        "bytes of GPUs": sum(torch.cuda.memory_reserved(gpu) for gpu in gpus),
    }
