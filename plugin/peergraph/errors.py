"""Errors that are Peergraph's own; everything else is a built-in exception."""

from __future__ import annotations


class PeerLostError(RuntimeError):
    """A rank died, or did not join a collective in time. The group is unusable afterwards."""


class CollectiveMismatchError(PeerLostError):
    """The ranks called different collectives. The group is unusable afterwards."""
