"""Makes a failing program short: fewer statements, simpler ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Fails = Callable[[list[str]], bool]
SIMPLER = [
    (r"^with torch\.\w+\(\): ", ""),
    (r", accelerate=True", ""),
    (r"\+(batch|layer|graph|instance|pair|dropout|residual)", ""),
    (r"make_model\('\w+", "make_model('GCN"),
    (r"edge_index\[:, data\.edge_mask\]", "edge_index"),
    (r", data\.edge_weight(\[data\.edge_mask\])?\)", ")"),
    (
        r"torch\.optim\.\w+\(model\.parameters\(\), .*\)",
        "torch.optim.SGD(model.parameters(), lr=0.1)",
    ),
    (r"np\.int64\((-?\d+)\)|torch\.tensor\((-?\d+)\)", r"\1\2"),
    (r"\.double\(\)|\.detach\(\)|\.clone\(\)", ""),
    (r"ids\(\d+, 7, \d+\)", "[0, 3, 3]"),
    (r"chosen\(\d+, \d+\)", "plain_mask"),
    (r"\bv\d+\b", "x"),
    (r"\b[gh]\b", "x"),
]


def shrink(lines: list[str], fails: Fails, attempts: int = 250) -> list[str]:
    """Returns a program that still fails, with as few statements as simple deletion gives.

    Args:
        lines: a program that fails.
        fails: whether a program fails in the same way.
        attempts: the most programs that are tried.
    """
    left = attempts

    def try_(candidate: list[str]) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    lines = _shorter(lines, try_)
    changed = True
    while changed and left > 0:
        changed = False
        for candidate in _simpler(lines):
            if try_(candidate):
                lines, changed = _shorter(candidate, try_), True
                break
    return lines


def _shorter(lines: list[str], fails: Fails) -> list[str]:
    """Without runs of statements, from long runs to single ones."""
    size = max(1, len(lines) // 2)
    while size:
        end = len(lines)
        while end > 0:
            start = max(0, end - size)
            candidate = lines[:start] + lines[end:]
            if candidate and fails(candidate):
                lines = candidate
            end = start
        size //= 2
    return lines


def _simpler(lines: list[str]) -> Iterator[list[str]]:
    for i, line in enumerate(lines):
        for pattern, text in SIMPLER:
            simpler = re.sub(pattern, text, line, count=1)
            if simpler != line:
                yield [*lines[:i], simpler, *lines[i + 1 :]]
