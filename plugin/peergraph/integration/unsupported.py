"""The exception by which a fused step leaves its work to the framework's own code."""

from __future__ import annotations


class Unsupported(Exception):
    """A call that Peergraph's kernels cannot serve; the message is the reason.

    Adapters catch it and run the framework's own code, so users never see it.
    """


def require(condition: bool, reason: str) -> None:
    """Raises :class:`Unsupported` with the reason unless the condition holds."""
    if not condition:
        raise Unsupported(reason)
