"""Runs a function on several ranks of this machine, with a deadline."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from peergraph.errors import PeerLostError
from peergraph.memory.group.store_file import StoreFile, open_store
from peergraph.number_arguments import check_number, check_seconds
from peergraph.testing.starting import Start, context_of

_MAX_RANKS = 1024
# If a rank's error follows from another rank's end: how long to wait for the other rank's error.
_CAUSE_WAIT_S = 1.0
# Texts of Gloo's errors after another rank has ended.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer")


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 240,
    device: str = "cpu",
    may_die: Collection[int] = (),
    start: Start = "forked",
) -> list[Any]:
    """Calls `fn(*args)` in `world_size` new processes and returns their results by rank.

    torch.distributed is initialised in each: Gloo for "cpu"; Gloo and NCCL for "cuda", where rank r
    has GPU r modulo their number. Working directory, environment and the start method of
    `multiprocessing` are the caller's. Every process is ended before this returns.

    Args:
        fn: a function of a module's top level; its result and arguments are pickled.
        world_size: the number of ranks.
        args: the arguments of the function.
        timeout_s: seconds for the whole run, after the processes have been started.
        device: "cpu" or "cuda".
        may_die: the ranks that may end without a result; their result is None.
        start: "forked" from a process that has imported torch and peergraph and done nothing with
            them, in milliseconds; variables that libraries read when they are loaded must be set
            before the first call, and all ranks hash strings alike. "fresh": by new interpreters,
            in seconds.

    Raises:
        RuntimeError: a rank raised an error (with its traceback), died, or returned a value that
            cannot be unpickled. If one rank's error follows from another's, both are shown, the
            cause first.
        TimeoutError: a rank took longer.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", got {device!r}')
    check_number("world_size", world_size, 0, _MAX_RANKS)
    check_seconds("timeout_s", timeout_s)
    # This process serves the store, so that the store outlives any rank.
    store = StoreFile()
    context = context_of(start)
    # Pickled here and not by multiprocessing: so the environment is set before the function's
    # module is imported, and tensors are not file descriptors of a process that may end.
    task = pickle.dumps((fn, args))
    start_method = multiprocessing.get_start_method()
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_run,
                args=(
                    sender,
                    dict(os.environ),
                    start_method,
                    task,
                    rank,
                    world_size,
                    store.path,
                    device,
                ),
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        # The deadline begins here: the first start waits until the forking process has imported
        # everything.
        deadline = time.monotonic() + timeout_s
        return _collect(processes, pipes, deadline, timeout_s, may_die)
    finally:
        for process in processes:
            # Asked first: whoever forked it may have reaped it, and its number be another's now.
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
        store.close()


def _run(
    sender: Connection,
    environment: dict[str, str],
    start_method: str,
    task: bytes,
    rank: int,
    world_size: int,
    store: str,
    device: str,
) -> None:
    has_finished = False
    try:
        os.environ.clear()
        os.environ.update(environment)
        # Of the rank's own processes, such as workers of a DataLoader; else it is the rank's.
        multiprocessing.set_start_method(start_method, force=True)
        torch.set_num_threads(1)
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
            store=open_store(store, world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=180),
        )
        # Gloo fails on a rank that is still connecting when another one, already connected, ends.
        dist.all_reduce(torch.zeros(1))
        fn, args = pickle.loads(task)
        message = pickle.dumps(("returned", fn(*args)))
        has_finished = True
    except Exception as error:
        end = "lost a rank" if _follows_from_an_end(error) else "raised"
        sender.send_bytes(pickle.dumps((end, traceback.format_exc())))
        sys.exit(1)  # for the other ranks this is a death
    else:
        sender.send_bytes(message)
    finally:
        sender.close()
        # Of NCCL only once all has gone well: it waits for the others, who may wait for this rank.
        if dist.is_initialized() and (has_finished or device == "cpu"):
            dist.destroy_process_group()


def _follows_from_an_end(error: Exception) -> bool:
    """Returns whether this rank's error follows from another rank's end."""
    return isinstance(error, PeerLostError) or any(t in str(error) for t in _LOST_CONNECTION)


def _collect(
    processes: list[BaseProcess],
    pipes: list[Connection],
    deadline: float,
    timeout_s: float,
    may_die: Collection[int],
) -> list[Any]:
    results: list[Any] = [None] * len(pipes)
    causes: list[RuntimeError] = []
    consequences: list[RuntimeError] = []
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    end = deadline
    while waiting and not causes:
        ready = wait(list(waiting), max(0.0, end - time.monotonic()))
        if not ready and consequences:
            break
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} took more than {timeout_s:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                results[rank] = _receive(pipe, rank, processes[rank], rank in may_die)
            except _LostRankError as error:
                consequences.append(error)
                end = min(end, time.monotonic() + _CAUSE_WAIT_S)
            except RuntimeError as error:
                causes.append(error)
    errors = causes + consequences
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RuntimeError("\n".join(map(str, errors))) from errors[0].__cause__
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    return results


class _LostRankError(RuntimeError):
    """A rank raised because another one has ended."""


def _receive(pipe: Connection, rank: int, process: BaseProcess, may_die: bool) -> Any:
    """Returns a rank's result, None if it died and may die. Raises RuntimeError for an error."""
    try:
        message = pipe.recv_bytes()
    except EOFError:
        if may_die:
            return None
        raise RuntimeError(f"rank {rank} {_end_of(process)}") from None
    try:
        end, value = pickle.loads(message)
    except Exception as error:
        raise RuntimeError(f"the result of rank {rank} cannot be unpickled") from error
    if end == "returned":
        return value
    kind = _LostRankError if end == "lost a rank" else RuntimeError
    raise kind(f"rank {rank} raised:\n{value}")


def _end_of(process: BaseProcess) -> str:
    process.join(5)
    code = process.exitcode
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
