"""Links to folders of the repository lead to their README; links in headings are their text.

Sphinx cannot have links to files in a table of contents.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

_LINK = re.compile(r"(\]\()((?!https?:)[^)#\s]+)")
_HEADING = re.compile(r"^#+ .*\]\(.*$", re.MULTILINE)
_LINK_IN_HEADING = re.compile(r"\[([^]]*)\]\([^)]*\)")
_PAGES = {
    "README.md": "docs/index.md",
    "examples": "docs/guides/examples.md",
    "docs/internals": "docs/internals/index.md",
}


def _rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    root = Path(app.srcdir)
    folder = (root / docname).parent

    def replace(match: re.Match[str]) -> str:
        target = (folder / match[2]).resolve()
        if not target.is_relative_to(root):
            return match[0]
        name = str(target.relative_to(root))
        if name in _PAGES:
            target = root / _PAGES[name]
        elif target.is_dir():
            target /= "README.md"
        else:
            return match[0]
        return match[1] + os.path.relpath(target, folder)

    text = _HEADING.sub(lambda heading: _LINK_IN_HEADING.sub(r"\1", heading[0]), source[0])
    source[0] = _LINK.sub(replace, text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
