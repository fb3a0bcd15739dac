"""What explain() collects."""

from __future__ import annotations

from contextvars import ContextVar

# One line for each step of a layer; None unless a call is being explained.
notes: ContextVar[list[str] | None] = ContextVar("peergraph_pyg_notes", default=None)


def is_explaining() -> bool:
    """Whether a call is being explained."""
    return notes.get() is not None


def note(line: str) -> None:
    """Adds a line."""
    lines = notes.get()
    if lines is not None:
        lines.append(line)
