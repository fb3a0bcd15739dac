"""Progress bars."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(total: int, what: str, unit: str, *, show: bool = True) -> tqdm[Any]:
    """Returns a bar on stderr; in a log file it writes a line in ten seconds at most."""
    from tqdm import tqdm

    interval = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(total=total, desc=what, unit=f" {unit}", disable=not show, mininterval=interval)
