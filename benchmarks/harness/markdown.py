"""Tables in Markdown, and pages whose tables programs write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], lines: Iterable[Sequence[object]], texts: int = 1) -> list[str]:
    """Returns the lines of a table; numbers, which stand behind `texts` columns, to the right."""
    align = ["---"] * texts + ["---:"] * (len(head) - texts)
    rows = [head, align, *([_text(cell) for cell in line] for line in lines)]
    return [*(f"| {' | '.join(row)} |" for row in rows), ""]


def filled(page: str, texts: Mapping[str, str]) -> str:
    """Returns the page with other texts between its marks ``<!-- table: NAME -->``, by name."""

    def replace(mark: re.Match[str]) -> str:
        return f"{mark[1]}\n{texts[mark[2]].strip()}\n\n{mark[3]}" if mark[2] in texts else mark[0]

    return _MARKED.sub(replace, page)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
