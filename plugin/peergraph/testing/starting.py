"""Starts the processes of ranks."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Literal

Start = Literal["forked", "fresh"]

# Forked ranks find these imported. Importing starts no thread and touches no GPU.
_imported = ["peergraph.testing.ranks", "peergraph.sampling"]
# Libraries read these variables when they are loaded. A process with threads must not be forked.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def preload(*modules: str) -> None:
    """Names more modules that forked ranks are to find imported, where they are installed.

    To be called before the first :func:`run_ranks` of the process. They must not start threads or
    initialise CUDA when they are imported.
    """
    _imported.extend(module for module in modules if module not in _imported)


def context_of(start: Start) -> ForkServerContext | SpawnContext:
    """Returns the context that starts processes in this way.

    Raises ValueError for another `start`.
    """
    if start == "fresh":
        return multiprocessing.get_context("spawn")
    if start != "forked":
        raise ValueError(f'start must be "forked" or "fresh", got {start!r}')
    context = multiprocessing.get_context("forkserver")
    first, last = "peergraph.testing.defer_collections", "peergraph.testing.freeze"
    context.set_forkserver_preload([first, *_imported, last])
    with _environment_of_the_server():
        forkserver.ensure_running()
    return context


@contextmanager
def _environment_of_the_server() -> Iterator[None]:
    """Returns a context in which started processes start no threads, and import from this process's
    paths.
    """
    environment = dict.fromkeys(_ONE_THREAD, "1")
    # Python before 3.13 does not pass the paths on before the server imports.
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
