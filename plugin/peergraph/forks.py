"""Ends torch's threads before this process forks, so that torch works in the child.

torch computes in the threads of its OpenMP runtime. A forked child has none of them, but libgomp
waits for them in the child's first operation on many elements: it would never end. Loaders fork,
and so do programs that load a store in each of their ranks.
"""

from __future__ import annotations

import ctypes
import os

import torch

_SOFT_PAUSE = 1  # omp_pause_soft of omp.h: settings stay, threads are made again when needed.


def keep_torch_usable_in_children() -> None:
    """Makes children that Python forks from now on free to use torch, with as many threads.

    The thread that forks ends its OpenMP threads before. Old versions of libgomp have no function
    for that: there, the children use one thread, as workers of torch's `DataLoader` do.
    """
    runtime = ctypes.CDLL(None)
    # libomp, which some builds of torch use, forgets its threads in a child by itself.
    if not hasattr(runtime, "GOMP_parallel") or hasattr(runtime, "__kmpc_fork_call"):
        return
    pause = getattr(runtime, "omp_pause_resource_all", None)
    if pause is None:
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    else:
        os.register_at_fork(before=lambda: pause(_SOFT_PAUSE))
