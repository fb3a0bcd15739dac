"""Files that one rank of each machine may write at the same time."""

from __future__ import annotations

import os
from typing import Any

import torch


def save(value: Any, path: str) -> None:
    """Writes a file as a whole: nobody reads a part of it, and the last writer wins."""
    part = f"{path}.part-{os.uname().nodename}-{os.getpid()}"
    torch.save(value, part)
    os.replace(part, path)
