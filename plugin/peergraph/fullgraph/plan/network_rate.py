"""The bandwidth between machines."""

from __future__ import annotations

ASSUMED_NETWORK = 12.5e9
"""Bytes a second that each machine sends and receives where nothing is known: 100 Gb/s."""


def check_network(bandwidth: float | None) -> float:
    """The bandwidth to plan by. Raises ValueError for one that is not positive."""
    if bandwidth is not None and not bandwidth > 0:
        raise ValueError(f"network must be a positive number of bytes a second, got {bandwidth}")
    return bandwidth or ASSUMED_NETWORK
