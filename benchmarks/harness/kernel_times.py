"""How long kernels and copies of each kind keep a GPU busy, by torch's profiler."""

from __future__ import annotations

import re
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
        kind = next((k for k, parts in kinds.items() if any(f in name for f in parts)), "rest")
        spans[kind].append((event.time_range.start, event.time_range.end))
    return spans


def busiest_kernels(work: Callable[[], object]) -> list[tuple[str, float, int]]:
    """Does some work once; returns name, microseconds and calls of its kernels and copies."""
    return _by_name(_events_of(work))


def timeline(work: Callable[[], object]) -> list[str]:
    """Does some work twice; returns lines: how long the GPU was busy, and the microseconds and
    calls of each kernel, each copy, and, of the second time, each call of the host to CUDA, in
    which waits are, too.
    """
    on_gpu = _events_of(work)
    all_events = _all_events(work, torch.profiler.ProfilerActivity.CPU)
    on_host = [event for event in all_events if re.match(r"cu[A-Z]|cuda[A-Z]", event.name)]
    spans = [(event.time_range.start, event.time_range.end) for event in on_gpu]
    if not spans:
        return ["the profiler sees no kernels"]
    first, last = min(begin for begin, _ in spans), max(end for _, end in spans)
    lines = [f"GPU busy for {length_of(spans):.0f} us of {last - first:.0f}, {len(spans)} launches"]
    for title, part in (("GPU", on_gpu), ("host", on_host)):
        lines.append(f"{title}: microseconds, calls, name")
        lines += [f"{us:10.0f} {calls:5}  {name[:110]}" for name, us, calls in _by_name(part)]
    gaps = _gaps(spans)[:5]
    lines.append(
        "longest gaps: " + ", ".join(f"{us:.0f} us at {at - first:.0f}" for us, at in gaps)
    )
    return lines


def _gaps(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Returns the lengths and begins of the gaps between spans, the longest gap first."""
    gaps, reached = [], float("inf")
    for begin, end in sorted(spans):
        gaps.append((begin - reached, reached))
        reached = end if reached == float("inf") else max(reached, end)
    return sorted((gap for gap in gaps if gap[0] > 0), reverse=True)


def _by_name(events: Sequence[Any]) -> list[tuple[str, float, int]]:
    totals: dict[str, tuple[float, int]] = {}
    for event in events:
        us, calls = totals.get(event.name, (0.0, 0))
        totals[event.name] = us + event.time_range.elapsed_us(), calls + 1
    rows = [(name, us, calls) for name, (us, calls) in totals.items()]
    return sorted(rows, key=lambda row: -row[1])


def _events_of(work: Callable[[], object]) -> list[Any]:
    """What the GPU does, without the calls of the host, which have the names of what they start."""
    kind = torch.autograd.DeviceType.CUDA
    return [event for event in _all_events(work) if event.device_type == kind]


def _all_events(work: Callable[[], object], *others: torch.profiler.ProfilerActivity) -> list[Any]:
    activities = [torch.profiler.ProfilerActivity.CUDA, *others]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    return list(profile.events())


def length_of(spans: Sequence[Span]) -> float:
    """The length of all spans together, where those that overlap count once."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length
