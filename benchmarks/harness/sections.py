"""Pages whose sections are written by different programs."""

from __future__ import annotations

import re
from pathlib import Path


def write_section(path: Path, name: str, text: str) -> None:
    """Replaces what stands under the heading `## name`, or appends it."""
    page = path.read_text() if path.exists() else ""
    made = f"## {name}\n\n{text.strip()}\n"
    found = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        page = f"{page.rstrip()}\n\n{made}" if page.strip() else made
    else:
        after = page[found.end() :]
        page = page[: found.start()] + made + (f"\n{after}" if after else "")
    path.write_text(page)
