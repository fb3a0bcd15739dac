"""Reads files that ``torch.save`` wrote, without running code that is in them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["load_checkpoint"]

_ERRORS = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, LookupError, AttributeError, TypeError),
    *(ValueError, UnicodeError),
)
"""The exceptions that torch raises for damaged files. Its documentation does not list them."""


def load_checkpoint(path: Path, what: str, kinds: Sequence[Any] = ()) -> Any:
    """Returns what a file holds: tensors, plain values and instances of a few classes.

    The file is read, not mapped: if a mapped file became shorter, the process would end.

    Args:
        path: the file.
        what: names what the file must be, for errors.
        kinds: the classes whose instances may be in the file.

    Raises:
        ValueError: the file is damaged, or has something else.
    """
    serialization = torch.serialization
    allowed = serialization.get_safe_globals()
    serialization.add_safe_globals([*kinds])  # torch 2.4 has no context for it
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _ERRORS as error:
        raise ValueError(f"{path} is no {what}: {error}") from None
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(allowed)
