"""The documentation names only what exists: links, files and dotted names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Where a path in the text may start.
BASES = [
    ROOT / base for base in ("", "csrc", "plugin", "plugin/peergraph", "adapters", "benchmarks")
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`((?:[\w.]+/)+[\w.]+\.(?:py|pyi|h|cpp|cu|cuh|sh|md|json))`")
NAME = re.compile(r"`(peergraph(?:_pyg|_dgl|_demo)?(?:\.[A-Za-z]\w*)+)")
MAX_DESIGN_WORDS = 1700


def pages() -> Iterator[tuple[str, Path, str]]:
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page, page.read_text()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_lead_somewhere() -> None:
    dead = []
    for name, page, text in pages():
        for target, anchor in LINK.findall(text):
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{name}: {target}#{anchor}")
    assert dead == []


def test_files_exist() -> None:
    missing = [
        f"{name}: {path}"
        for name, _, text in pages()
        for path in FILE.findall(text)
        if not any((base / path).exists() for base in BASES)
    ]
    assert missing == []


def test_names_exist() -> None:
    missing = []
    for name, _, text in pages():
        for dotted in sorted(set(NAME.findall(text))):
            if not resolves(dotted):
                missing.append(f"{name}: {dotted}")
    assert missing == []


def resolves(dotted: str) -> bool:
    """Whether the name is a module, or something in a module."""
    package, *rest = dotted.split(".")
    if package != "peergraph":
        pytest.importorskip(package, exc_type=ImportError)
    for split in range(len(rest), -1, -1):
        module = ".".join([package, *rest[:split]])
        try:
            found = find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if found:
            try:
                reduce(getattr, rest[split:], import_module(module))
            except AttributeError:
                return False
            return True
    return False


def test_design_is_short() -> None:
    assert len((ROOT / "docs" / "design.md").read_text().split()) <= MAX_DESIGN_WORDS
