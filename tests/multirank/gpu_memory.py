"""Memory of GPUs, once processes that used it have ended."""

from __future__ import annotations

import time

import torch

# The driver takes back what a killed process had some time after its end.
_LAG_S = 30.0


def check_freed(gpu: int, least: int) -> None:
    """Raises AssertionError unless soon `least` bytes of the GPU are free."""
    deadline = time.monotonic() + _LAG_S
    while (free := torch.cuda.mem_get_info(gpu)[0]) < least:
        assert time.monotonic() < deadline, f"{free} bytes of GPU {gpu} are free, not {least}"
        time.sleep(0.1)
