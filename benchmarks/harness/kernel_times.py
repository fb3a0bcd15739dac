"""How long kernels and copies of each kind keep a GPU busy, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Span = tuple[float, float]


def spans_by_kind(
    work: Callable[[], object], kinds: Mapping[str, Sequence[str]]
) -> dict[str, list[Span]]:
    """Does some work once, and returns the microseconds in which the GPU does something, by kind.

    Args:
        work: need not wait for the GPU.
        kinds: parts of the lower-case names of kernels and copies, by kind; a name belongs to the
            first kind that has a part of it, and else to "rest".
    """
    spans: dict[str, list[Span]] = {kind: [] for kind in (*kinds, "rest")}
    for event in _events_of(work):
        name = event.name.lower()
        kind = next((k for k, found in kinds.items() if any(f in name for f in found)), "rest")
        spans[kind].append((event.time_range.start, event.time_range.end))
    return spans


def busiest_kernels(work: Callable[[], object]) -> list[tuple[str, float, int]]:
    """Does some work once; returns name, microseconds and calls of its kernels and copies."""
    found: dict[str, tuple[float, int]] = {}
    for event in _events_of(work):
        us, calls = found.get(event.name, (0.0, 0))
        found[event.name] = us + event.time_range.elapsed_us(), calls + 1
    rows = [(name, us, calls) for name, (us, calls) in found.items()]
    return sorted(rows, key=lambda row: -row[1])


def _events_of(work: Callable[[], object]) -> list[Any]:
    """What the GPU does, without the calls of the host, which have the names of what they start."""
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        work()
        torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA
    return [event for event in profile.events() if event.device_type == kind]


def length_of(spans: Sequence[Span]) -> float:
    """The length of all spans together, where those that overlap count once."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length
