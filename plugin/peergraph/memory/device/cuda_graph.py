"""CUDA graphs of the kernels that a function launches."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

_Result = TypeVar("_Result")


def record_cuda_graph(
    work: Callable[[], _Result], stream: torch.cuda.Stream, pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """Captures what a function launches, without running it. Synchronises.

    Other threads may use the GPU meanwhile.

    Args:
        work: called once, on `stream`.
        stream: the stream of the capture; not the default one.
        pool: the memory pool (``graph.pool()``) of other graphs; None: a new pool. Each of the
            graphs writes over the results of the others: they must have been read before, and no
            two of them may run at the same time.

    Returns:
        The graph, and the result of `work`: its tensors have values after a replay.

    Raises:
        RuntimeError: `work` does what a CUDA graph cannot repeat; the error says why.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with (
            _without_collections(),
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            result = work()
    except RuntimeError as error:
        # When a capture has failed, ending it raises another error.
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        _end_failed_capture(stream)
        raise RuntimeError(
            "the step could not be captured as a CUDA graph. Within the step nothing may be read "
            "on the host (.item(), float(loss), print, masks or sizes that the step computes), no "
            "data may come from the CPU, an optimizer needs capturable=True, and no loss of a step "
            f"before may be alive with its graph of gradients: {cause}"
        ) from error
    return graph, result


@contextmanager
def _without_collections() -> Iterator[None]:
    """Garbage that is collected in a capture may free memory of a GPU, which ends the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _end_failed_capture(stream: torch.cuda.Stream) -> None:
    """Captures one kernel: until a capture ends well, torch refuses random numbers."""
    with (
        suppress(RuntimeError),
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream),
    ):
        torch.zeros(1, device=stream.device)
