"""How much of a GPU a thread that makes batches takes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_PRIORITY = "PEERGRAPH_PREFETCH_PRIORITY"
_BLOCKS = "PEERGRAPH_PREFETCH_BLOCKS"


@dataclass(frozen=True)
class Share:
    """What a thread that makes batches takes of the GPU; see :func:`prefetch`."""

    priority: int = -1
    max_blocks: int = 0

    def __post_init__(self) -> None:
        for name, value in (("priority", self.priority), ("max_blocks", self.max_blocks)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
        if self.priority not in (-1, 0):
            raise ValueError(f"priority must be -1 or 0, got {self.priority}")
        if self.max_blocks < 0:
            raise ValueError(f"max_blocks must be 0 or more, got {self.max_blocks}")

    @classmethod
    def chosen(cls, priority: int | None, max_blocks: int | None) -> Share:
        """What was asked for, else what the environment says."""
        return cls(
            _from_environment(_PRIORITY, "-1", "-1|0") if priority is None else priority,
            _from_environment(_BLOCKS, "0", r"\d+") if max_blocks is None else max_blocks,
        )


def _from_environment(name: str, default: str, pattern: str) -> int:
    text = os.environ.get(name, default)
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{name} must be a number like {default} ({pattern}), got {text!r}")
    return int(text)
