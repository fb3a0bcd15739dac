"""How much of a GPU a thread that makes batches takes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

import torch

_PRIORITY = "PEERGRAPH_PREFETCH_PRIORITY"
_BLOCKS = "PEERGRAPH_PREFETCH_BLOCKS"


@dataclass(frozen=True)
class Share:
    """What a thread that makes batches takes of the GPU; see :func:`prefetch`."""

    priority: int = -1
    max_blocks: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise TypeError(f"priority must be an int, got {self.priority!r}")
        if self.priority not in (-1, 0):
            raise ValueError(f"priority must be -1 or 0, got {self.priority}")
        if self.max_blocks is None:
            return
        if isinstance(self.max_blocks, bool) or not isinstance(self.max_blocks, int):
            raise TypeError(f"max_blocks must be an int, got {self.max_blocks!r}")
        if self.max_blocks < 0:
            raise ValueError(f"max_blocks must be 0 or more, got {self.max_blocks}")

    @classmethod
    def chosen(cls, priority: int | None, max_blocks: int | None) -> Share:
        """What was asked for, else what the environment says, else the default."""
        if priority is None:
            priority = _from_environment(_PRIORITY, "-1|0")
        if max_blocks is None:
            max_blocks = _from_environment(_BLOCKS, r"\d+")
        return cls(-1 if priority is None else priority, max_blocks)

    def blocks_on(self, device: torch.device) -> int:
        """The limit for gathers on this device; 0: none.

        By default a block for each multiprocessor. Training on 2 H200s (papers-sized graph,
        30-30-30 at 1024, sharded), 117.1 ms a step on batches that lay ready and 136.6 ms with
        batches made when asked for, took 121.2 ms at 132 blocks, which H200s have
        multiprocessors; 125.1 without a limit, for gathers that wait for another GPU's memory then
        hold the places that the model's kernels need; 126.8 at 64 and 131.9 at 32, where a gather
        lasts so long that the loop waits for it.
        """
        if self.max_blocks is not None:
            return self.max_blocks
        if device.type != "cuda":
            return 0
        return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _from_environment(name: str, pattern: str) -> int | None:
    text = os.environ.get(name)
    if text is None:
        return None
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{name} must be a number ({pattern}), got {text!r}")
    return int(text)
