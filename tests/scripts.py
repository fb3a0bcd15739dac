"""Runs a Python program in a process that is forked with torch, PyG and DGL imported.

A new interpreter takes ten seconds to import them. What a program does by itself is the same: it is
``__main__``, with its own arguments, environment, working directory and output.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch.multiprocessing

from peergraph import num_gpus
from peergraph.testing.starting import context_of

HIDES_GPUS = False
"""Whether the programs find no GPU. Their environment says so, not that of this process."""


@dataclass(frozen=True)
class Finished:
    """The end of a program; the output of several ranks is joined in their order."""

    returncode: int
    stdout: str
    stderr: str


def run_python(
    *command: str | Path,
    ranks: int | None = None,
    timeout_s: float = 200,
    watch: Callable[[int, str], None] | None = None,
) -> Finished:
    """Runs ``python *command`` and returns its exit code and output.

    Without GPUs ``torch.multiprocessing.spawn`` forks the processes that the program starts with
    it. Exit functions are not called.

    Args:
        command: a script, ``-m`` and a module, or ``-c`` and code, then the arguments.
        ranks: as under torchrun with so many processes on this machine; None: without it. The exit
            code is that of the first rank that failed.
        timeout_s: the program is killed after this time, with all processes that it started.
        watch: called every now and then with the id of the first process, which is its process
            group's too, and the output until now.

    Raises:
        TimeoutError: the program took longer.
    """
    context = context_of("forked")
    arguments = [str(word) for word in command]
    port = free_port()
    method = multiprocessing.get_start_method()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"{rank}.out") for rank in range(ranks or 1)]
        errors = [path.with_suffix(".err") for path in outputs]
        for path in (*outputs, *errors):
            path.touch()
        processes = []
        try:
            for rank, (out, err) in enumerate(zip(outputs, errors, strict=True)):
                env = {} if ranks is None else _torchrun(rank, ranks, port)
                if HIDES_GPUS:
                    env["CUDA_VISIBLE_DEVICES"] = ""
                process = context.Process(
                    target=_run,
                    args=(arguments, os.environ | env, os.getcwd(), method, str(out), str(err)),
                )
                process.start()
                processes.append(process)
            deadline = time.monotonic() + timeout_s
            for process in processes:
                while process.exitcode is None and time.monotonic() < deadline:
                    process.join(0.1 if watch else max(0.0, deadline - time.monotonic()))
                    if watch:
                        watch(processes[0].pid, outputs[0].read_text())
                if process.exitcode is None:
                    said = "\n".join(path.read_text()[-3000:] for path in errors)
                    raise TimeoutError(f"{arguments} took more than {timeout_s:g} s:\n{said}")
                if process.exitcode:  # The others may wait for it.
                    break
        finally:
            code = next((p.exitcode for p in processes if p.exitcode), 0)
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()
        texts = ("".join(path.read_text() for path in paths) for paths in (outputs, errors))
        return Finished(code, *texts)


def _nothing() -> None:
    pass


def _fork_in_place_of_spawn() -> None:
    spawning: Any = sys.modules["torch.multiprocessing.spawn"]  # Its function hides it.
    # A child of a fork server knows that server's address, but would start another server.
    forkserver._forkserver.ensure_running = forkserver.ensure_running = _nothing  # type: ignore[attr-defined,method-assign]
    torch.multiprocessing.spawn = spawning.spawn = partial(_fork, spawning.start_processes)


def _fork(start: Callable[..., Any], fn: Callable[..., Any], args: Any = (), **options: Any) -> Any:
    """Forks where what is to be run could be sent to a new process."""
    if hasattr(sys.modules["__main__"], fn.__name__) or fn.__module__ != "__main__":
        ForkingPickler.dumps((fn, args))  # Raises as spawning does.
    return start(fn, args, start_method="fork", **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _torchrun(rank: int, ranks: int, port: int) -> dict[str, str]:
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    variables |= {"GROUP_RANK": 0, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1"} | {name: str(value) for name, value in variables.items()}


def _run(
    command: list[str], variables: dict[str, str], folder: str, method: str, out: str, err: str
) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    multiprocessing.set_start_method(method, force=True)
    if num_gpus() == 0:
        _fork_in_place_of_spawn()
    first, *rest = command
    if first == "-c":
        sys.path.insert(0, folder)
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv = command
        runpy.run_path(first, run_name="__main__")
