"""Fails where a page of the built site would fetch something from another host.

    python docs/check_offline.py build/site

Links that a reader may click are no concern of this check; scripts, styles, fonts and images are.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

_LOADING = {
    **dict.fromkeys(("script", "img", "source", "iframe", "video", "audio"), ("src", "srcset")),
    **{"link": ("href",), "object": ("data",), "embed": ("src",), "image": ("href", "xlink:href")},
}
# These name another page and load nothing.
_NAMING = {"canonical", "alternate", "author", "license", "next", "prev", "search", "index"}
_REMOTE = re.compile(r"^\s*(?:https?:)?//")
_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and set((given.get("rel") or "").split()) <= _NAMING:
            return
        for name in _LOADING.get(tag, ()):
            if _REMOTE.match(given.get(name) or ""):
                self.remote.append(f"<{tag} {name}={given[name]}>")


def remote_sources(site: Path) -> list[str]:
    """What pages, styles and pictures below a folder would load from other hosts."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            page = _Page()
            text = path.read_text()
            page.feed(text)
            remote = page.remote + _CSS.findall(
                "".join(re.findall(r"<style.*?</style>", text, re.S))
            )
        elif path.suffix in {".css", ".svg"}:
            remote = _CSS.findall(path.read_text())
        else:
            continue
        found += [f"{path.relative_to(site)}: {source}" for source in remote]
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not list(site.rglob("*.html")):
        sys.exit(f"no pages in {site}")
    if remote := remote_sources(site):
        sys.exit("\n".join(remote))
