"""Replaces files atomically."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that others see its old contents, its new contents, or no file.

    Creates a missing folder.

    Raises:
        OSError: the file cannot be written; then nothing has changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(part, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
